"""The checkpoint format of AutoGPTQ, which GPTQModel, vLLM and others read: write it, read it back.

Per layer, with 32 / bits codes in each int32, the first in the lowest bits:
    qweight int32 [in bits/32, out]          codes, packed along the input
    qzeros  int32 [groups, out bits/32]      zero points, packed along the output, each MINUS ONE
    scales  fp16  [groups, out]              g_idx int32 [in]: the group of each column
"minus one" is version 1 (checkpoint_format "gptq"); version 2 ("gptq_v2") stores zero points as
they are. Symmetric codes get 2^(bits-1) added, which is then every zero point.

A zero point of 0 has no place in version 1. It occurs in groups without a negative weight; where
the highest code is unused (a group of zeros, say) codes and zero point move up by one, else
ValueError asks for version 2.
But: 2, 4 and 8 bits only (3 bits are packed across words there), and no bias.
"""

import json
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file

WORD = 32
FORMATS = ("gptq", "gptq_v2")
PARTS = ("qweight", "qzeros", "scales", "g_idx")


@dataclass(frozen=True)
class Layer:
    """Unpacked: codes [out, in], zero points [groups, out] (both int32), scales, g_idx."""

    codes: torch.Tensor
    zeros: torch.Tensor
    scales: torch.Tensor
    g_idx: torch.Tensor

    def dequantize(self):
        """fp32 [out, in]: scale (code - zero point), both of the column's own group."""
        group = self.g_idx.long()
        step, zero = self.scales.float()[group].t(), self.zeros[group].t()
        return step * (self.codes - zero)


def pack_words(codes, bits):
    """Codes [rows, columns] -> int32 [rows bits/32, columns], the first row in the lowest bits."""
    per_word = _per_word(bits)
    if len(codes) % per_word:
        raise ValueError(f"{len(codes)} codes of {bits} bits don't fill whole words of 32 bits")
    lanes = codes.to(torch.int64).reshape(-1, per_word, codes.shape[1])
    shifts = torch.arange(per_word)[:, None] * bits
    words = (lanes << shifts).sum(dim=1)
    return (words - (words >= 2**31) * 2**WORD).to(torch.int32)


def unpack_words(words, bits):
    """The way back: int32 [rows, columns] -> int32 codes [rows 32/bits, columns]."""
    shifts = torch.arange(_per_word(bits))[:, None] * bits
    lanes = (words[:, None].to(torch.int64) >> shifts) & (2**bits - 1)
    return lanes.reshape(-1, words.shape[1]).to(torch.int32)


def pack_layer(tensor, version="gptq"):
    """{part: tensor} of one QuantizedTensor or ReorderedTensor."""
    inner = getattr(tensor, "tensor", tensor)
    codes, zeros = tensor.codes.to(torch.int32), inner.zero_point
    if inner.symmetric:
        codes = codes + 2 ** (inner.bits - 1)
        zeros = torch.full(inner.scale.shape, 2 ** (inner.bits - 1))
    g_idx, zeros = group_index(tensor), zeros.to(torch.int32).t()
    if version == "gptq":
        codes, zeros = _lift(codes, zeros, g_idx, inner.bits)
    stored = (zeros - 1 if version == "gptq" else zeros).t()
    return {
        "qweight": pack_words(codes.t(), inner.bits),
        "qzeros": pack_words(stored, inner.bits).t().contiguous(),
        "scales": inner.scale.to(torch.float16).t().contiguous(),
        "g_idx": g_idx.to(torch.int32),
    }


def group_index(tensor):
    """g_idx int64 [in] of a tensor, with or without one of its own."""
    if hasattr(tensor, "g_idx"):
        return tensor.g_idx
    columns = tensor.shape[1]
    return torch.arange(columns) // (tensor.group_size if tensor.group_size > 0 else columns)


def unpack_layer(parts, bits, version="gptq"):
    """Layer of {part: tensor}."""
    zeros = unpack_words(parts["qzeros"].t(), bits).t()
    codes = unpack_words(parts["qweight"], bits).t()
    zeros = zeros + 1 if version == "gptq" else zeros
    return Layer(codes, zeros, parts["scales"], parts["g_idx"])


def save(folder, tensors, rest=None, version="gptq", config=None, act_order=True, damping=0.01):
    """Write model.safetensors, quantize_config.json and, with `config`, config.json.

    tensors: {layer: QuantizedTensor}. rest: {name: tensor} of everything that is not quantized.
    config: the model's own configuration as a dict; quantization_config is put into it.
    """
    if version not in FORMATS:
        raise ValueError(f"version={version!r}: use one of {FORMATS}")
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    stored = {name: tensor.contiguous() for name, tensor in (rest or {}).items()}
    for name, tensor in tensors.items():
        try:
            parts = pack_layer(tensor, version)
        except ValueError as error:
            raise ValueError(f"layer {name}: {error}") from error
        stored |= {f"{name}.{part}": value for part, value in parts.items()}
    about = _about(next(iter(tensors.values())), version, act_order, damping)
    save_file(stored, folder / "model.safetensors", metadata={"format": "pt"})
    _write(folder / "quantize_config.json", about)
    if config is not None:
        _write(folder / "config.json", config | {"quantization_config": about})
    return folder


def load(folder):
    """({layer: Layer}, {name: tensor of the rest}, quantize_config) of a folder of `save`."""
    about = json.loads((Path(folder) / "quantize_config.json").read_text(encoding="utf-8"))
    with safe_open(Path(folder) / "model.safetensors", framework="pt") as file:
        stored = {name: file.get_tensor(name) for name in file.keys()}
    names = [n.removesuffix(".qweight") for n in stored if n.endswith(".qweight")]
    layers = {
        n: unpack_layer(
            {part: stored.pop(f"{n}.{part}") for part in PARTS},
            about["bits"],
            about["checkpoint_format"],
        )
        for n in names
    }
    return layers, stored, about


def _lift(codes, zeros, g_idx, bits):
    """Move groups whose zero point is 0 up by one code, where the highest code is free."""
    low = zeros == 0  # [groups, out]
    here = low[g_idx].t()  # [out, in]
    if (here & (codes == 2**bits - 1)).any():
        raise ValueError(
            "a group without negative weights has zero point 0, which version 1 can't store: "
            'write version="gptq_v2", or quantize with symmetric=True'
        )
    return codes + here.to(torch.int32), zeros + low.to(torch.int32)


def _about(tensor, version, act_order, damping):
    inner = getattr(tensor, "tensor", tensor)
    return {
        "quant_method": "gptq",
        "checkpoint_format": version,
        "bits": inner.bits,
        "group_size": inner.group_size,
        "sym": inner.symmetric,
        "desc_act": act_order,
        "static_groups": inner is tensor,
        "damp_percent": damping,
        "true_sequential": False,
    }


def _per_word(bits):
    if bits not in (2, 4, 8):
        raise ValueError(f"bits={bits}: here words of 32 bits hold codes of 2, 4 or 8 bits")
    return WORD // bits


def _write(path, content):
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
