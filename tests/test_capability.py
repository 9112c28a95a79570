"""Formats by capability: as utils.device says (field case 40), AMD's two kinds of FP8, flags."""

import pytest

from utils import device
from utils.quantization import capability, formats

CAPABILITIES = [(6, 1), (7, 0), (7, 5), (8, 0), (8, 6), (8, 9), (9, 0), (10, 0), (12, 0)]


@pytest.mark.parametrize("compute", CAPABILITIES)
def test_nvidia_agrees_with_the_device_module(compute):
    ours, dtypes = capability.nvidia(compute), device.cuda_dtypes(compute)
    assert ("bf16" in ours) == ("bfloat16" in dtypes) == (compute >= (8, 0))
    assert ("e4m3" in ours) == ("float8_e4m3fn" in dtypes) == (compute >= (8, 9))
    assert ("nvfp4" in ours) == (compute >= (10, 0))


def test_amd_changed_its_fp8():
    assert "e4m3fnuz" in capability.amd("gfx942:sramecc+:xnack-")
    assert "e4m3" not in capability.amd("gfx942")
    assert "e4m3" in capability.amd("gfx950") and "e4m3fnuz" not in capability.amd("gfx950")
    assert "tf32" in capability.amd("gfx942") and "tf32" not in capability.amd("gfx950")
    assert "e4m3" in capability.amd("gfx1201") and "mxfp4" not in capability.amd("gfx1201")
    assert capability.amd("gfx000") is None
    assert capability.amd("gfx1250") is None  # same first digits as gfx1201, other instructions


@pytest.mark.parametrize(
    "flags, expected",
    [
        (["avx2", "fma"], ("fp32",)),
        (["avx512_vnni", "avx512_bf16"], ("fp32", "int8", "bf16")),
        (["amx_int8", "amx_bf16", "amx_fp16"], ("fp32", "int8", "bf16", "fp16")),
        (["asimdhp", "asimddp", "bf16", "i8mm"], ("fp32", "int8", "bf16", "fp16")),
    ],
)
def test_cpu_flags(flags, expected):
    assert capability.cpu(flags) == expected


def test_native_by_kind(monkeypatch):
    assert capability.native("cuda", capability=(8, 9)) == capability.nvidia((8, 9))
    assert capability.native("rocm", gfx="gfx950") == capability.amd("gfx950")
    monkeypatch.setattr(device, "probe", lambda kind: ("float32", "float16"))
    assert capability.native("mps") == ("fp32", "fp16")
    assert capability.native("rocm", gfx="gfx000") == ("fp32", "fp16")
    with pytest.raises(ValueError, match="tpu"):
        capability.native("tpu")
    with pytest.raises(ValueError, match="capability=None"):
        capability.native("cuda")


def test_here_asks_the_cpu_for_its_flags(monkeypatch):
    monkeypatch.setattr(device, "available", lambda: ["cpu"])
    monkeypatch.setattr(device, "cpu_flags", lambda: {"avx512_vnni", "avx2"})
    assert capability.here() == ("fp32", "int8")


def test_here_is_made_of_known_formats():
    known = {*formats.FORMATS, *formats.BLOCK_FORMATS}
    assert "fp32" in capability.here() and set(capability.here()) <= known
    listed = {n for names in capability.AMD.values() for n in names} | set(capability.NVIDIA_FROM)
    assert listed <= known
