"""Fewer bits: number grids, packed weights, quantized models."""

from utils.quantization import activation_aware, gguf, gptq_model, packing, rtn, size
from utils.quantization.checkpoint import load_model, save_model
from utils.quantization.linear import PackedLinear
from utils.quantization.model import quantize_model
from utils.quantization.tensor import QuantizedTensor

__all__ = [
    "PackedLinear",
    "QuantizedTensor",
    "activation_aware",
    "gguf",
    "gptq_model",
    "load_model",
    "packing",
    "quantize_model",
    "rtn",
    "save_model",
    "size",
]
