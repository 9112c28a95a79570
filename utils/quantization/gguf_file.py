"""Write a Llama-shaped transformers model as a GGUF file that llama.cpp runs.

Matrices are written in one kind: F32, F16, BF16, or a block format of gguf.py; the embedding and
the head may have another (`head_kind`). Norms stay F32. A tied head is written once, as the
embedding. Query and key rows change their order: transformers rotates channel i with i + d/2 of a
head of d channels, llama.cpp channel 2i with 2i + 1, so row (half, i) becomes row (i, half).

But: no other architecture, no biases, no stretched rotary positions and only byte-level BPE
tokenizers; each of these is refused by name. Source: the GGUF specification; the container is
written by the `gguf` package, the blocks by our own codec.
"""

from dataclasses import dataclass
from math import prod
from pathlib import Path

import gguf
import numpy as np
import torch

from utils import cache
from utils.quantization import gguf as codec
from utils.quantization import gguf_tokenizer

PLAIN = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
KINDS = (*PLAIN, *codec.TYPES)
ALIGNMENT = gguf.GGUF_DEFAULT_ALIGNMENT
NORMS = {"attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm"}
MATRICES = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


@dataclass(frozen=True)
class Entry:
    """One tensor of the file. rotary_heads: heads whose rows change their order, 0 for none."""

    name: str
    weight: torch.Tensor
    kind: str
    rotary_heads: int = 0

    @property
    def nbytes(self):
        """Bytes of the tensor in the file, without the padding behind it."""
        if self.kind in PLAIN:
            return self.weight.numel() * PLAIN[self.kind].itemsize
        return self.weight.numel() // codec.BLOCK * codec.block_bytes(self.kind)


def write(model, tokenizer, path, kind="F32", head_kind=None):
    """Write `model` (LlamaForCausalLM) and its tokenizer to `path`; returns the path.

    kind: one of KINDS, for the linear layers.  head_kind: for the embedding and the head; by
    default Q8_0 beside the 4- and 5-bit kinds, else the same as `kind`.
    Raises ValueError for a model or tokenizer that the module does not know, and for weights that
    the kind can't hold; the message names the tensor.
    """
    entries = plan(model, kind, head_kind)
    with cache.write_atomically(path) as scratch:
        writer = gguf.GGUFWriter(scratch, "llama")
        try:
            _describe(writer, model.config, kind)
            gguf_tokenizer.describe(writer, tokenizer, model.config.vocab_size)
            _write_tensors(writer, entries)
        finally:
            writer.close()
    return path


def data_bytes(model, kind="F32", head_kind=None):
    """Bytes of all tensors in the file, padding included: the file without its metadata."""
    entries = plan(model, kind, head_kind)
    return sum(-(-entry.nbytes // ALIGNMENT) * ALIGNMENT for entry in entries)


def plan(model, kind="F32", head_kind=None):
    """The file's tensors as a list of Entry, in llama.cpp's names. Raises as `write` does."""
    head_kind = head_kind or (kind if kind in (*PLAIN, "Q8_0") else "Q8_0")
    for name, value in (("kind", kind), ("head_kind", head_kind)):
        if value not in KINDS:
            raise ValueError(f"{name}={value!r}: use one of {', '.join(KINDS)}")
    _check_model(model)
    body, config = model.model, model.config
    entries = [Entry("token_embd.weight", body.embed_tokens.weight, head_kind)]
    for i, layer in enumerate(body.layers):
        entries += _layer(f"blk.{i}", layer, config, kind)
    entries.append(Entry("output_norm.weight", body.norm.weight, "F32"))
    if model.lm_head.weight is not body.embed_tokens.weight:
        entries.append(Entry("output.weight", model.lm_head.weight, head_kind))
    for entry in entries:
        _check_blocks(entry)
    return entries


def _layer(prefix, layer, config, kind):
    heads = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}
    kinds = dict.fromkeys(NORMS, "F32") | dict.fromkeys(MATRICES, kind)
    return [
        Entry(
            f"{prefix}.{name}.weight",
            layer.get_submodule(module).weight,
            kinds[name],
            heads.get(name, 0),
        )
        for name, module in (NORMS | MATRICES).items()
    ]


def _check_model(model):
    config = model.config
    if config.model_type != "llama":
        raise ValueError(f"model_type={config.model_type!r}: only 'llama' can be written")
    biases = [name for name, _ in model.named_parameters() if name.endswith(".bias")]
    if biases:
        raise ValueError(f"{biases[0]}: a model with biases can't be written")
    if config.hidden_act != "silu":
        raise ValueError(f"hidden_act={config.hidden_act!r}: llama.cpp's llama has silu only")
    rope_type = config.rope_parameters["rope_type"]
    if rope_type != "default":
        raise ValueError(f"rope_type={rope_type!r}: only plain rotary positions can be written")


def _check_blocks(entry):
    if entry.kind not in PLAIN and entry.weight.shape[-1] % codec.BLOCK:
        raise ValueError(
            f"{entry.name} {tuple(entry.weight.shape)}: {entry.kind} needs input features "
            f"divisible by {codec.BLOCK}; use F16 or F32"
        )


def _describe(writer, config, kind):
    """The keys that llama.cpp builds its graph from."""
    head_dim = _head_dim(config)
    writer.add_type("model")
    writer.add_name(Path(config.name_or_path).name or "llama")
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_rope_dimension_count(head_dim)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(config.vocab_size)
    if head_dim * config.num_attention_heads != config.hidden_size:
        writer.add_key_length(head_dim)
        writer.add_value_length(head_dim)
    prefix = "ALL" if kind == "F32" else "MOSTLY"
    writer.add_file_type(gguf.LlamaFileType[f"{prefix}_{kind}"])
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)


def _head_dim(config):
    return getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads


def _write_tensors(writer, entries):
    """Header, then one tensor after the other: never more than one encoded copy in memory."""
    for entry in entries:
        writer.add_tensor_info(
            entry.name,
            tuple(entry.weight.shape),
            np.dtype(np.float32),
            entry.nbytes,
            raw_dtype=gguf.GGMLQuantizationType[entry.kind],
        )
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for entry in entries:
        writer.write_tensor_data(encode(entry))


def encode(entry):
    """The bytes of a tensor, uint8 [nbytes]."""
    weight = entry.weight.detach().to("cpu", torch.float32)
    if entry.rotary_heads:
        weight = interleave(weight, entry.rotary_heads)
    if entry.kind not in PLAIN:
        return _named(entry, weight).flatten().numpy()
    encoded = weight.to(PLAIN[entry.kind]).contiguous()
    if not torch.isfinite(encoded).all():
        raise ValueError(f"{entry.name}: its values are not finite in {entry.kind}; use F32")
    return encoded.flatten().view(torch.uint8).numpy()


def _named(entry, weight):
    try:
        return codec.quantize(weight, entry.kind)
    except ValueError as error:
        raise ValueError(f"{entry.name}: {error}") from None


def interleave(weight, heads):
    """Rows [heads * (2, d/2), in] of transformers -> [heads * (d/2, 2), in] of llama.cpp."""
    return _swap(weight, (heads, 2, -1))


def deinterleave(weight, heads):
    """The way back."""
    rows = weight.shape[0] // heads // 2
    return _swap(weight, (heads, rows, 2))


def _swap(weight, split):
    columns = prod(weight.shape[1:])
    return weight.reshape(*split, columns).transpose(1, 2).reshape(weight.shape)
