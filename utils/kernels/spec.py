"""What the engine needs to know about a Llama-shaped model: sizes, norms, biases, rotation, names.

Reads the configuration and the small tensors of a transformers model; the big matrices are only
named, so that each can be stored in a form of its own. Rotary tables come from the model's own
module, so whatever scaling its configuration asks for is in them.

Covers Llama (SmolLM2 is one), Qwen2/2.5 and Mistral: RMSNorm, rotary positions, grouped-query
attention, SwiGLU, a tied or untied head, biases or none.
But: full attention only. Mixture of experts, sliding windows shorter than the cache, norms on
queries and keys (Qwen3), and rotary tables that change with the length are refused by name.
"""

from dataclasses import dataclass

import torch

MODEL_TYPES = ("llama", "mistral", "qwen2")
PER_LAYER = {
    "q": "self_attn.q_proj", "k": "self_attn.k_proj", "v": "self_attn.v_proj",
    "o": "self_attn.o_proj",
    "gate": "mlp.gate_proj", "up": "mlp.up_proj", "down": "mlp.down_proj",
}  # fmt: skip
EMBEDDING = "model.embed_tokens"
HEAD = "lm_head"


@dataclass(frozen=True, eq=False)
class Spec:
    """Sizes in numbers; tensors fp32 on the CPU.

    norms: {"attention": [layers, hidden], "mlp": [layers, hidden], "final": [hidden]}.
    biases: {matrix name: [out]}, only those that exist.  cos, sin: [max_tokens, head_dim].
    """

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocabulary: int
    eps: float
    tied: bool
    max_tokens: int
    cos: torch.Tensor
    sin: torch.Tensor
    norms: dict
    biases: dict

    def name(self, layer, part):
        """Module name of a matrix: part is q, k, v, o, gate, up or down."""
        return f"model.layers.{layer}.{PER_LAYER[part]}"

    @property
    def head(self):
        """Name of the matrix that makes the logits: the embedding itself when tied."""
        return EMBEDDING if self.tied else HEAD

    def matrices(self):
        """{name: (out, in)} of all big matrices, in the order in which a step reads them."""
        width, kv = self.heads * self.head_dim, self.kv_heads * self.head_dim
        shapes = {
            "q": (width, self.hidden), "k": (kv, self.hidden), "v": (kv, self.hidden),
            "o": (self.hidden, width),
            "gate": (self.intermediate, self.hidden), "up": (self.intermediate, self.hidden),
            "down": (self.hidden, self.intermediate),
        }  # fmt: skip
        found = {EMBEDDING: (self.vocabulary, self.hidden)}
        for layer in range(self.layers):
            found |= {self.name(layer, part): shape for part, shape in shapes.items()}
        if not self.tied:
            found[HEAD] = (self.vocabulary, self.hidden)
        return found


def read(model, max_tokens):
    """Spec of a transformers model for texts of at most `max_tokens`.

    ValueError names what is not supported, or a tensor of the wrong shape, before any work.
    """
    config = model.config
    _check(config, max_tokens)
    state = dict(model.named_parameters())
    embedding = state[f"{EMBEDDING}.weight"]
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    cos, sin = rotary_tables(model, max_tokens)
    spec = Spec(
        layers=config.num_hidden_layers,
        hidden=config.hidden_size,
        heads=config.num_attention_heads,
        kv_heads=config.num_key_value_heads,
        head_dim=head_dim,
        intermediate=config.intermediate_size,
        vocabulary=embedding.shape[0],
        eps=config.rms_norm_eps,
        tied=_tied(model, embedding),
        max_tokens=max_tokens,
        cos=cos,
        sin=sin,
        norms=_norms(state, config.num_hidden_layers),
        biases=_biases(model),
    )
    _check_norms(spec)
    return spec


def _tied(model, embedding):
    head = model.get_output_embeddings().weight  # no tensor when the head is packed
    return isinstance(head, torch.Tensor) and head.data_ptr() == embedding.data_ptr()


@torch.no_grad()
def rotary_tables(model, max_tokens):
    """cos and sin, fp32 [max_tokens, head_dim], from the model's own rotary module."""
    rotary = model.model.rotary_emb
    positions = torch.arange(max_tokens, device=model.device)[None]
    probe = torch.zeros(1, 1, 1, device=model.device, dtype=torch.float32)
    cos, sin = rotary(probe, positions)
    return cos[0].float().cpu().contiguous(), sin[0].float().cpu().contiguous()


def _norms(state, layers):
    def stacked(name):
        rows = [state[f"model.layers.{i}.{name}.weight"] for i in range(layers)]
        return torch.stack([row.detach().float().cpu() for row in rows])

    return {
        "attention": stacked("input_layernorm"),
        "mlp": stacked("post_attention_layernorm"),
        "final": state["model.norm.weight"].detach().float().cpu().clone(),
    }


def _biases(model):
    found = {}
    for name, module in model.named_modules():
        bias = getattr(module, "bias", None)
        if isinstance(bias, torch.Tensor):
            found[name] = bias.detach().float().cpu().clone()
    return found


def _check(config, max_tokens):
    kind = getattr(config, "model_type", None)
    if kind not in MODEL_TYPES:
        raise ValueError(
            f"model_type={kind!r}: the engine runs {', '.join(MODEL_TYPES)}; "
            "use transformers' own generate for this one"
        )
    if getattr(config, "hidden_act", "silu") != "silu":
        raise ValueError(f"hidden_act={config.hidden_act!r}: the engine has silu (SwiGLU) only")
    if max_tokens < 1 or max_tokens > config.max_position_embeddings:
        raise ValueError(
            f"max_tokens={max_tokens}: this model is made for 1 to "
            f"{config.max_position_embeddings} positions"
        )
    _check_attention(config, max_tokens)


def _check_attention(config, max_tokens):
    window = getattr(config, "sliding_window", None)
    used = kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
    sliding = "sliding_attention" in used or (config.model_type == "mistral" and window)
    if sliding and window and window < max_tokens:
        raise ValueError(
            f"sliding_window={window} is shorter than max_tokens={max_tokens}: the engine has full "
            f"attention only; set max_tokens to {window} or less"
        )
    if kinds - {"full_attention", "sliding_attention"}:
        raise ValueError(f"layer_types {sorted(kinds)}: the engine has full attention only")
    rope = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    rope_type = rope.get("rope_type", "default")
    if rope_type in ("dynamic", "longrope"):
        raise ValueError(f"rope_type={rope_type!r} changes with the length: not supported")
    if config.num_attention_heads % config.num_key_value_heads:
        raise ValueError(
            f"{config.num_attention_heads} heads over {config.num_key_value_heads} key-value "
            "heads: the number must divide"
        )


def _check_norms(spec):
    tensors = {f"{name} norm": t for name, t in spec.norms.items()}
    tensors |= {f"bias of {name}": t for name, t in spec.biases.items()}
    for name, tensor in tensors.items():
        if not torch.isfinite(tensor).all():
            raise ValueError(f"{name} holds NaN or infinity: repair the checkpoint")
