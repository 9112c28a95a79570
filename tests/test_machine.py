"""Bandwidth and FLOP/s sweeps: what is counted, what is computed, what is refused. No speeds."""

import numpy as np
import pytest
import torch

from utils import machine
from utils.device import Device

LOOPS = {"read": machine._read, "copy": machine._copy, "triad": machine._triad}


def arrays():
    return np.arange(1, 9), np.zeros(8, np.int64), np.arange(8) * 10


def test_read_adds_up_every_number_once_a_pass():
    x, y, z = arrays()
    machine.compiled(machine._read)(x, y, z, 3)
    assert y[0] == 3 * 36 and not y[1:].any()


def test_copy_and_triad_write_every_number():
    for name, expected in (("copy", lambda x, z: x), ("triad", lambda x, z: x + 3 * z)):
        x, y, z = arrays()
        machine.compiled(LOOPS[name])(x, y, z, 2)
        assert y.tolist() == expected(x, z).tolist()


@pytest.mark.parametrize("kernel", machine.COUNTED)
def test_bytes_are_counted_as_stream_counts_them(kernel, monkeypatch):
    """A pass of 1 s over 2 threads: the rate is the bytes of all arrays that the kernel names."""
    seen = []

    def one_second(function, shares, repeats):
        seen.extend(shares)
        return 1.0

    monkeypatch.setattr(machine, "seconds_per_pass", one_second)
    rate = machine.bandwidth(kernel, 6, threads=2)
    named = {"read": 1, "copy": 2, "triad": 3}[kernel]
    assert len(seen) == 2
    touched = sum(a.nbytes for share in seen for a in share[:named])
    assert rate == touched == pytest.approx(6e6, rel=1e-4)
    assert all(a.size == 8 for share in seen for a in share[named:])


def test_a_timing_is_long_enough_and_per_pass(monkeypatch):
    passes, now = [], [0.0]
    monkeypatch.setattr(machine.time, "perf_counter", lambda: now[0])

    def work(times):
        passes.append(times)
        now[0] += 2e-4 * times

    assert machine.seconds_per_pass(work, [()], repeats=2) == pytest.approx(2e-4)
    assert passes == [1, 1, 8, 64, 64, 64]  # a warm-up, trials, and both repeats of the last one
    assert 64 * 2e-4 >= machine.SHORTEST > 8 * 2e-4


def test_threads_share_the_work(monkeypatch):
    import threading

    names = set()
    machine.seconds_per_pass(
        lambda share, times: (
            names.add((share, threading.current_thread().name)) or machine.time.sleep(0.02)
        ),
        [("a",), ("b",)],
        repeats=1,
    )
    assert {share for share, _ in names} == {"a", "b"}


def test_other_devices_use_torch(monkeypatch):
    monkeypatch.setattr(Device, "torch", torch.device("cpu"))
    monkeypatch.setattr(Device, "synchronize", lambda self: None)
    fake = Device("mps", "fake", 1, None)
    for kernel in machine.COUNTED:
        assert machine.bandwidth(kernel, 1, repeats=1, device=fake) > 0


def test_torch_products_count_their_operations(monkeypatch):
    monkeypatch.setattr(machine, "_best", lambda work, passes, device, repeats: work() is None or 1)
    assert machine.gemm(8) == 2 * 8**3
    assert machine.gemv(8) == 4 * 8**2
    assert machine.gemm(8, torch.bfloat16) == 2 * 8**3
    assert machine.gemv(8, torch.bfloat16) == 2 * 8**2


def test_torch_products_run():
    assert machine.gemm(16, repeats=1) > 0 and machine.gemv(16, repeats=1) > 0


def test_caches_are_read_from_the_system(tmp_path):
    for i, (kind, level, size) in enumerate(
        [("Data", 1, "48K"), ("Instruction", 1, "32K"), ("Unified", 2, "2048K")]
    ):
        folder = tmp_path / f"index{i}"
        folder.mkdir()
        for name, value in (("type", kind), ("level", level), ("size", size)):
            (folder / name).write_text(f"{value}\n")
    assert machine.caches(tmp_path) == {1: 48 * 1024, 2: 2048 * 1024}
    assert machine.caches(tmp_path / "nothing") == {}


def test_bad_input_is_named():
    with pytest.raises(ValueError, match="kernel='add'"):
        machine.bandwidth("add", 1)
    with pytest.raises(ValueError, match="megabytes=0"):
        machine.bandwidth("read", 0)
    with pytest.raises(ValueError, match="threads=0"):
        machine.bandwidth("read", 1, threads=0)
    for product in (machine.gemm, machine.gemv):
        with pytest.raises(ValueError, match="n=0"):
            product(0)
