"""utils.device: kinds, dtypes by capability, the container's limits (field cases 34, 39–41)."""

import pytest
import torch

from utils import device


def fake_cuda(monkeypatch, capability=(8, 0), hip=None):
    properties = type("Properties", (), {"name": "a card", "total_memory": 24 * 2**30})()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: properties)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda index: capability)
    monkeypatch.setattr(torch.version, "hip", hip)


@pytest.mark.parametrize(
    "capability, bf16, fp8",
    [
        ((7, 5), False, False),
        ((8, 0), True, False),
        ((8, 6), True, False),
        ((8, 9), True, True),
        ((9, 0), True, True),
    ],
)
def test_cuda_dtypes_follow_the_compute_capability(monkeypatch, capability, bf16, fp8):
    fake_cuda(monkeypatch, capability)
    found = device.detect()
    assert found.kind == "cuda" and found.memory_bytes == 24 * 2**30
    assert ("bfloat16" in found.dtypes) == bf16
    assert ("float8_e4m3fn" in found.dtypes) == fp8
    assert found.compute_dtype == (torch.bfloat16 if bf16 else torch.float16)


def test_rocm_is_told_apart_from_cuda_and_is_probed(monkeypatch):
    fake_cuda(monkeypatch, hip="6.4")
    monkeypatch.setattr(device, "probe", lambda kind: ("float32", "float16"))
    found = device.detect()
    assert found.kind == "rocm" and found.torch.type == "cuda"
    assert "float8_e4m3fn" not in found.dtypes and found.compute_dtype == torch.float16


def test_mps_dtypes_are_probed_not_assumed(monkeypatch):
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    monkeypatch.setattr(torch.mps, "recommended_max_memory", lambda: 16 * 2**30)
    monkeypatch.setattr(device, "probe", lambda kind: ("float32", "float16"))
    found = device.detect()
    assert found.kind == "mps" and found.compute_dtype == torch.float16


def test_probe_leaves_out_what_fails_and_what_is_wrong(monkeypatch):
    real = torch.Tensor.__matmul__

    def product(a, b):
        if a.dtype == torch.bfloat16:
            raise RuntimeError("not implemented for BFloat16")
        return real(a, b) + (1 if a.dtype == torch.float16 else 0)

    monkeypatch.setattr(torch.Tensor, "__matmul__", product)
    assert device.probe("cpu") == ("float32",)


def test_the_cpu_is_always_there_and_computes_in_float32():
    found = device.detect("cpu")
    assert found.kind == "cpu" and found.compute_dtype == torch.float32
    assert found.threads >= 1 and found.memory_bytes > 2**28


@pytest.mark.parametrize("kind, message", [("tpu", "unknown device kind"), ("rocm", "not here")])
def test_a_kind_that_is_not_here_is_named_with_what_is(monkeypatch, kind, message):
    monkeypatch.setattr(device, "available", lambda: ["cpu"])
    with pytest.raises(ValueError, match=message) as error:
        device.detect(kind)
    assert "cpu" in str(error.value)


@pytest.mark.parametrize("quota, threads", [("150000 100000", 1), ("50000 100000", 1)])
def test_threads_stay_within_the_containers_quota(tmp_path, quota, threads):
    (tmp_path / "cpu.max").write_text(quota)
    assert device.cpu_threads(tmp_path) == threads


def test_threads_without_a_quota_are_the_cores_we_may_use(tmp_path):
    without = device.cpu_threads(tmp_path)
    (tmp_path / "cpu.max").write_text("max 100000")
    assert device.cpu_threads(tmp_path) == without >= 1


def test_quota_of_the_older_control_groups(tmp_path):
    (tmp_path / "cpu").mkdir()
    (tmp_path / "cpu" / "cpu.cfs_quota_us").write_text("100000\n")
    (tmp_path / "cpu" / "cpu.cfs_period_us").write_text("100000\n")
    assert device.cpu_threads(tmp_path) == 1


def test_memory_is_cut_to_the_containers_limit(tmp_path):
    assert device.cpu_memory_bytes(tmp_path) > 2**28
    (tmp_path / "memory.max").write_text(str(2**28))
    assert device.cpu_memory_bytes(tmp_path) == 2**28
    (tmp_path / "memory.max").write_text("max")
    assert device.cpu_memory_bytes(tmp_path) > 2**28


def test_synchronize_reaches_the_right_back_end(monkeypatch):
    calls = []
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: calls.append("cuda"))
    monkeypatch.setattr(torch.mps, "synchronize", lambda: calls.append("mps"))
    for kind in ("cuda", "rocm", "mps", "cpu"):
        device.Device(kind, "", 1, None).synchronize()
    assert calls == ["cuda", "cuda", "mps"]


def test_report_names_device_dtype_and_versions():
    text = device.report()
    assert "device" in text and torch.__version__ in text and "float32" in text
    unknown = device.Device("cpu", "x", 2, None)
    assert "memory n/a" in device.report(unknown)
