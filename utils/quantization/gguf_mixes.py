"""Which block type llama.cpp gives to which tensor: the meaning of a label such as "Q4_K_M".

A label is a mix. Q4_K_M asks for Q4_K, but for Q6_K in attn_v and ffn_down of the first eighth of
the blocks, the last eighth, and every third between. A matrix whose rows don't divide by 256 can't
hold a k-quant and falls back:  Q4_K -> Q5_0,  Q5_K -> Q5_1,  Q6_K -> Q8_0  (blocks of 32).

But: dense Llama shapes below 70B, and six labels; no importance matrix, which changes some mixes
(in Q4_0 the first eighth of ffn_down becomes Q4_1). Source: llama-quant.cpp
(llama_tensor_get_type_impl, tensor_type_fallback).
"""

from utils.quantization import gguf as codec
from utils.quantization import gguf_kquants
from utils.quantization.gguf_content import Row

FALLBACK = {"Q4_K": "Q5_0", "Q5_K": "Q5_1", "Q6_K": "Q8_0"}
BASE = {
    "Q4_0": "Q4_0", "Q8_0": "Q8_0", "Q4_K_S": "Q4_K", "Q4_K_M": "Q4_K",
    "Q5_K_M": "Q5_K", "Q6_K": "Q6_K",
}  # fmt: skip
MEDIUM = ("Q4_K_M", "Q5_K_M")
SENSITIVE = ("attn_v", "ffn_down")


def row_bytes(kind, columns):
    """Bytes of one row of a matrix; ValueError when the row isn't whole blocks."""
    plain = {"F32": 4, "F16": 2, "BF16": 2}
    if kind in plain:
        return plain[kind] * columns
    k_quant = kind in gguf_kquants.SIZES
    block = gguf_kquants.SUPER if k_quant else codec.BLOCK
    if columns % block:
        raise ValueError(f"{columns} columns: {kind} needs rows divisible by {block}")
    return columns // block * (gguf_kquants if k_quant else codec).block_bytes(kind)


def fits(kind, columns):
    """Whether rows of so many columns are whole blocks of `kind`."""
    block = gguf_kquants.SUPER if kind in gguf_kquants.SIZES else codec.BLOCK
    return columns % block == 0


def fall_back(kind, columns):
    """The type that is written in place of `kind`; F16 when not even blocks of 32 fit."""
    if fits(kind, columns):
        return kind
    kind = FALLBACK.get(kind, kind)
    return kind if fits(kind, columns) else "F16"


def more_bits(layer, layers):
    """Whether a "medium" mix gives this block's sensitive matrices the larger type."""
    eighth = layers // 8
    return layer < eighth or layer >= 7 * layers // 8 or (layer - eighth) % 3 == 2


def wanted(label, name, layers, columns, tied=True):
    """The type that a label asks for in one matrix, before any fall-back."""
    base = BASE[label]
    if name == "output.weight" or (tied and name == "token_embd.weight"):
        return "Q6_K" if fits(base, columns) and base != "Q8_0" else "Q8_0"
    if name == "token_embd.weight":
        return base
    _, layer, part, _ = name.split(".")
    if part in SENSITIVE and label in MEDIUM and more_bits(int(layer), layers):
        return "Q6_K"
    early = {"attn_v": 4, "ffn_down": layers // 8}
    return "Q5_K" if label == "Q4_K_S" and int(layer) < early.get(part, 0) else base


def plan(config, label):
    """The tensor table of a file with this label: a list of Row. ValueError for other labels.

    config: anything with the fields of a LlamaConfig.
    """
    if label not in BASE:
        raise ValueError(f"label={label!r}: use one of {', '.join(BASE)}")
    tied = config.tie_word_embeddings
    rows, matrices = [], shapes(config)
    for name, shape in matrices.items():
        kind = fall_back(wanted(label, name, config.num_hidden_layers, shape[-1], tied), shape[-1])
        rows.append(Row(name, kind, shape, shape[0] * row_bytes(kind, shape[-1])))
    return rows


def shapes(config):
    """{name in the file: [out, in]} of all matrices of a Llama."""
    hidden, inner = config.hidden_size, config.intermediate_size
    d = getattr(config, "head_dim", None) or hidden // config.num_attention_heads
    q, kv = d * config.num_attention_heads, d * config.num_key_value_heads
    block = {
        "attn_q": (q, hidden), "attn_k": (kv, hidden), "attn_v": (kv, hidden),
        "attn_output": (hidden, q), "ffn_gate": (inner, hidden), "ffn_up": (inner, hidden),
        "ffn_down": (hidden, inner),
    }  # fmt: skip
    found = {"token_embd.weight": (config.vocab_size, hidden)}
    if not config.tie_word_embeddings:
        found["output.weight"] = (config.vocab_size, hidden)
    for layer in range(config.num_hidden_layers):
        found |= {f"blk.{layer}.{part}.weight": shape for part, shape in block.items()}
    return found
