"""Round to nearest on all 2^b levels of a symmetric grid, as llama.cpp's Q4_0 does.

    scale = (the weight of largest magnitude) / -2^(b-1)        code = round(w / scale)

The weight of largest magnitude gets the code -2^(b-1) exactly; the scale is negative where that
weight is positive. `rtn` with symmetric=True leaves that code unused and has one level less: 15
instead of 16 at 4 bits, which this grid turns into a smaller error at the same size.

But: the opposite end has one step less, so a weight of nearly the same magnitude and the other
sign is clipped by up to one step. Source: ggml-quants.c, quantize_row_q4_0_ref.
"""

import torch

from utils.quantization.tensor import QuantizedTensor


def quantize(weight, bits=4, group_size=32):
    """weight [out, in] -> QuantizedTensor with codes -2^(b-1) ... 2^(b-1) - 1 and fp16 scales.

    group_size: weights per scale along `in` (a short last group gets its own), -1: a whole row.
    Codes are chosen for the stored scale. ValueError for NaN, infinity, a scale beyond fp16.
    """
    if weight.dim() != 2 or not torch.isfinite(weight).all():
        raise ValueError(f"the grid needs a finite matrix, got {tuple(weight.shape)}")
    rows, columns = weight.shape
    width = columns if group_size == -1 else group_size
    padded = torch.nn.functional.pad(weight.detach().float(), (0, -columns % width))
    groups, half = padded.reshape(rows, -1, width), 2 ** (bits - 1)
    largest = groups.gather(2, groups.abs().argmax(dim=2, keepdim=True))
    scale = (largest / -half).to(torch.float16)
    if not torch.isfinite(scale).all():
        raise ValueError("a scale does not fit in fp16: use rtn.quantize with scale_dtype=float32")
    divisor = torch.where(scale == 0, 1.0, scale.float())
    codes = torch.round(groups / divisor).clamp(-half, half - 1).to(torch.int8)
    codes = codes.reshape(rows, -1)[:, :columns].contiguous()
    return QuantizedTensor.from_codes(codes, divisor[..., 0], None, bits, group_size)
