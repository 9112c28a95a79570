"""llama.cpp's own quantizer, as `llama-quantize` runs it: a GGUF file in, one with fewer bits out.

    quantize(source, target, "Q4_K_M", importance={"blk.0.attn_q.weight": [in], ...})

importance: for each matrix one weight per input column, the mean square of what that input carries
on calibration text (an "importance matrix"); llama.cpp then minimises the weighted error.

But: a way to make files that llama.cpp's users have, not a codec; ours are in utils.quantization.
Needs the optional package of requirements-bench.txt (llamacpp.Missing says how to get it).
"""

import ctypes
from pathlib import Path

import numpy as np

from utils.bench import llamacpp


def quantize(source, target, label, importance=None, threads=1):
    """Write `target`; returns its path. ValueError for an unknown label or when it fails."""
    api = llamacpp.library()
    kind = getattr(api, f"LLAMA_FTYPE_MOSTLY_{label}", None)
    if kind is None:
        raise ValueError(f"label={label!r}: llama.cpp has no such mix; try Q4_K_M or Q8_0")
    if not Path(source).is_file():
        raise FileNotFoundError(f"no GGUF file {source}: write it with gguf_file.write")
    settings = api.llama_model_quantize_default_params()
    settings.nthread, settings.ftype = threads, kind
    rows, kept = _importance(api, importance or {})
    if importance:
        settings.imatrix = rows
    status = api.llama_model_quantize(
        str(source).encode(), str(target).encode(), ctypes.byref(settings)
    )
    del kept  # the arrays had to live until here
    if status:
        raise ValueError(f"llama.cpp can't quantize {source}: its reason is on the error output")
    return target


def _importance(api, importance):
    """The C array of (name, data, size), ended by an empty one; and what it points into."""
    arrays = {n.encode(): np.ascontiguousarray(v, np.float32) for n, v in importance.items()}
    rows = (api.llama_model_imatrix_data * (len(arrays) + 1))()
    for row, (name, array) in zip(rows, arrays.items(), strict=False):
        row.name, row.size = name, array.size
        row.data = array.ctypes.data_as(ctypes.POINTER(ctypes.c_float))
    return rows, arrays
