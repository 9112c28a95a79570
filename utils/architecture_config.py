"""From the keys of a `config.json` to an Architecture, with one clear error for what is wrong.

Each family has its own habits: Qwen2 always has biases on queries, keys and values; Qwen3 has norms
on queries and keys; Gemma ties its head without saying so; a mixture of experts names the number of
experts in three ways.
But: only what `architecture.MODEL_TYPES` lists, and full attention only.
"""

from utils.architecture import MODEL_TYPES, Architecture, Latent

COUNTS = (
    "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "vocab_size",
)  # fmt: skip


def parse(config, name):
    """Architecture `name` from a dict with the keys of a config.json."""
    kind = config.get("model_type")
    if kind not in MODEL_TYPES:
        raise ValueError(
            f"model_type={kind!r} is not counted here: it must be one of {', '.join(MODEL_TYPES)}"
        )
    _check_window(config, kind)
    hidden, layers, heads, intermediate, vocabulary = (_count(config, key) for key in COUNTS)
    return Architecture(
        name=name,
        hidden=hidden,
        layers=layers,
        heads=heads,
        intermediate=intermediate,
        vocabulary=vocabulary,
        tied=_flag(config, "tie_word_embeddings", kind == "gemma"),
        **_attention(config, kind, hidden, heads),
        **_experts(config, kind, layers),
    )


def _count(config, key):
    value = config.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ValueError(f"{key}={value!r}: the configuration needs a whole number of at least 1")
    return value


def _optional(config, key):
    """A count that may be missing, None or 0: then 0."""
    return _count(config, key) if config.get(key) else 0


def _flag(config, key, default=False):
    value = default if config.get(key) is None else config[key]
    if not isinstance(value, bool):
        raise ValueError(f"{key}={value!r}: the configuration needs True or False")
    return value


def _attention(config, kind, hidden, heads):
    biased = _flag(config, "attention_bias")
    if kind == "deepseek_v3":
        return _latent(config, heads, biased)
    kv_heads = _kv_heads(config, kind, heads)
    if heads % kv_heads:
        raise ValueError(
            f"num_attention_heads={heads} is no multiple of num_key_value_heads={kv_heads}: each "
            "key-value head serves the same number of query heads"
        )
    return {
        "kv_heads": kv_heads,
        "head_dim": _head_dim(config, kind, hidden, heads),
        "qkv_bias": kind == "qwen2" or biased,
        "o_bias": kind != "qwen2" and biased,
        "mlp_bias": _flag(config, "mlp_bias"),
        "qk_norm": kind in ("qwen3", "qwen3_moe"),
    }


def _kv_heads(config, kind, heads):
    """A Llama that doesn't say has as many as heads; each other family has its own default."""
    if kind == "llama" and config.get("num_key_value_heads") is None:
        return heads
    return _count(config, "num_key_value_heads")


def _head_dim(config, kind, hidden, heads):
    """head_dim where it is given: it need not be hidden / heads. Two families have
    a default that depends on neither, so they must give it."""
    if config.get("head_dim") is not None or kind in ("gemma", "qwen3"):
        return _count(config, "head_dim")
    if hidden % heads:
        raise ValueError(
            f"head_dim is missing and hidden_size={hidden} is no multiple of "
            f"num_attention_heads={heads}: give head_dim"
        )
    return hidden // heads


def _latent(config, heads, biased):
    if biased:
        raise ValueError("attention_bias=True is not counted with latent attention: set it False")
    plain, rotary = _count(config, "qk_nope_head_dim"), _count(config, "qk_rope_head_dim")
    latent = Latent(
        query_rank=_optional(config, "q_lora_rank") or None,
        rank=_count(config, "kv_lora_rank"),
        plain=plain,
        rotary=rotary,
        value=_count(config, "v_head_dim"),
    )
    return {"kv_heads": heads, "head_dim": plain + rotary, "latent": latent}


def _experts(config, kind, layers):
    names = ("n_routed_experts", "num_experts", "num_local_experts")
    key = next((name for name in names if config.get(name)), None)
    if kind not in ("mixtral", "qwen3_moe", "deepseek_v3"):
        return {"dense_layers": layers}
    if key is None:
        raise ValueError(f"{kind} without experts: the configuration needs one of {names}")
    experts, used = _count(config, key), _count(config, "num_experts_per_tok")
    if used > experts:
        raise ValueError(f"num_experts_per_tok={used} of {key}={experts}: there are not that many")
    wide = "intermediate_size" if kind == "mixtral" else "moe_intermediate_size"
    return {
        "dense_layers": _dense_layers(config, layers),
        "experts": experts,
        "experts_per_token": used,
        "expert_intermediate": _count(config, wide),
        "shared_experts": _optional(config, "n_shared_experts"),
    }


def _dense_layers(config, layers):
    """How many layers have a plain MLP instead of experts."""
    first, only = _optional(config, "first_k_dense_replace"), config.get("mlp_only_layers") or ()
    step = _optional(config, "decoder_sparse_step") or 1
    return sum(i < first or i in only or (i + 1) % step > 0 for i in range(layers))


def _check_window(config, kind):
    window = config.get("sliding_window")
    always = kind in ("mistral", "mixtral") and window
    sliding = "sliding_attention" in (config.get("layer_types") or ())
    if always or sliding or (config.get("use_sliding_window") and window):
        raise ValueError(
            f"sliding_window={window}: only full attention is counted; for texts that fit into the "
            "window set sliding_window to None and use_sliding_window to False"
        )
