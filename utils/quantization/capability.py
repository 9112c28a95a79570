"""Which number formats a machine multiplies natively, by capability, never by a product's name.

NVIDIA: compute capability. AMD: the gfx name of the instruction set. CPUs: the flags that Linux
lists. Names are those of `formats`. Storing a format needs none of this: any machine can keep FP8
bytes and widen them before it multiplies, as the engine does.

But: it says that an instruction exists, not that it is fast or that a library calls it. Apple's
GPUs and unknown AMD targets are probed with `device.probe`. NVIDIA's 4-bit integers are left out:
tensor cores had them from 7.5, and the instructions of 10.0 list 8-bit integers only.
Sources: Transformer Engine's support matrix and CUTLASS's page on Blackwell (NVIDIA); ROCm Compute
Profiler's data type table and vLLM's platforms/rocm.py (AMD); oneDNN's list of CPU instruction
sets, the Linux kernel's cpufeatures.h and hwcaps (CPUs).
"""

import torch

from utils import device

NVIDIA_FROM = {
    "fp32": (0, 0),
    "fp16": (7, 0),
    "int8": (7, 5),
    "bf16": device.BF16_CAPABILITY,
    "tf32": (8, 0),
    "e4m3": device.FP8_CAPABILITY,
    "e5m2": device.FP8_CAPABILITY,
    "mxfp8": (10, 0),
    "mxfp4": (10, 0),
    "nvfp4": (10, 0),
}
AMD = {  # the first part of the gfx name
    "gfx90a": ("fp32", "fp16", "bf16", "int8"),
    "gfx94": ("fp32", "fp16", "bf16", "int8", "tf32", "e4m3fnuz", "e5m2fnuz"),
    "gfx95": ("fp32", "fp16", "bf16", "int8", "e4m3", "e5m2", "mxfp8", "mxfp4"),
    "gfx120": ("fp32", "fp16", "bf16", "int8", "e4m3", "e5m2"),
}
CPU_FLAGS = {
    "int8": {"avx512_vnni", "avx_vnni", "amx_int8", "i8mm", "asimddp"},
    "bf16": {"avx512_bf16", "amx_bf16", "bf16"},
    "fp16": {"avx512_fp16", "amx_fp16", "asimdhp"},
    "e4m3": {"amx_fp8"},
    "e5m2": {"amx_fp8"},
}
PROBED = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16"}


def nvidia(capability):
    """Formats that a GPU of this compute capability (major, minor) multiplies natively.

    ValueError: something else than two numbers.
    """
    if not isinstance(capability, tuple | list) or len(capability) != 2:
        raise ValueError(f"capability={capability!r}: pass (major, minor), such as (8, 9)")
    return tuple(name for name, first in NVIDIA_FROM.items() if tuple(capability) >= first)


def amd(gfx):
    """Formats of an AMD target such as "gfx942:sramecc+"; None for one that is not listed."""
    return next((names for start, names in AMD.items() if gfx.startswith(start)), None)


def cpu(flags):
    """Formats that a CPU with these flags (strings) multiplies with an instruction of their own."""
    extra = tuple(name for name, any_of in CPU_FLAGS.items() if any_of & set(flags))
    return ("fp32", *extra)


def native(kind, capability=None, gfx="", flags=()):
    """Formats of a device of `kind`: "cuda", "rocm", "mps" or "cpu".

    Pass what goes with it: capability (cuda), gfx (rocm), flags (cpu). ValueError: unknown kind,
    or no capability for cuda.
    """
    if kind not in device.KINDS:
        raise ValueError(f"unknown device kind {kind!r}: use one of {', '.join(device.KINDS)}")
    if kind == "cuda":
        return nvidia(capability)
    if kind == "cpu":
        return cpu(flags)
    known = amd(gfx) if kind == "rocm" else None
    return known or tuple(PROBED[name] for name in device.probe("mps" if kind == "mps" else "cuda"))


def here():
    """Formats of the best device of this machine."""
    kind, facts = device.available()[0], {}
    if kind == "cuda":
        facts["capability"] = torch.cuda.get_device_capability(0)
    if kind == "rocm":
        facts["gfx"] = torch.cuda.get_device_properties(0).gcnArchName
    if kind == "cpu":
        facts["flags"] = device.cpu_flags()
    return native(kind, **facts)
