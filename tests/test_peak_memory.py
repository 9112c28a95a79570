"""utils.peak_memory: figures mean what their names say, here and on devices that are absent."""

import mmap
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from utils import peak_memory
from utils.device import Device

CPU, GPU, MPS = (Device(kind, "", 1, None) for kind in ("cpu", "rocm", "mps"))
MIB = 2**20
LINUX = pytest.mark.skipif(
    not peak_memory.STATUS.exists(), reason="needs /proc/self/status (Linux)"
)


def test_a_process_has_more_addresses_than_pages():
    now = peak_memory.process()
    assert list(now) == ["virtual", "resident", "anonymous", "files", "peak_resident"]
    assert now["virtual"] > now["resident"] > 50e6
    assert now["peak_resident"] >= 0.9 * now["resident"]


@LINUX
def test_empty_takes_addresses_and_filling_takes_memory():
    before = peak_memory.process()
    held = torch.empty(64 * MIB, dtype=torch.uint8)
    mapped = peak_memory.process()
    assert mapped["virtual"] - before["virtual"] >= 64 * MIB
    assert mapped["anonymous"] - before["anonymous"] < 8 * MIB
    held.fill_(1)
    filled = peak_memory.process()
    assert filled["anonymous"] - before["anonymous"] > 60 * MIB


@LINUX
def test_a_mapped_file_counts_as_files_not_as_anonymous(tmp_path):
    path = tmp_path / "weights"
    path.write_bytes(b"x" * (32 * MIB))
    before = peak_memory.process()
    with open(path, "rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    touched = sum(mapped[i] for i in range(0, len(mapped), 4096))
    after = peak_memory.process()
    assert touched and after["files"] - before["files"] > 30 * MIB
    assert after["anonymous"] - before["anonymous"] < 4 * MIB


WATCHES = """
import torch
from utils import peak_memory
torch.ones(50_000_000)  # a peak before: 200 MB, given back
whole = peak_memory.process()["peak_resident"]
with peak_memory.Watch() as small:
    torch.ones(10_000_000)  # 40 MB
with peak_memory.Watch() as large:
    torch.ones(25_000_000)  # 100 MB
kept = peak_memory.process()["peak_resident"] >= whole
print(small.exact, small.grown, large.grown, kept)
"""


@LINUX
def test_a_watch_sees_its_own_block_and_the_process_keeps_its_peak():
    """In a process of its own: memory that earlier tests gave back to malloc would be reused."""
    root = Path(__file__).resolve().parents[1]
    done = subprocess.run(
        [sys.executable, "-c", WATCHES], cwd=root, capture_output=True, text=True, check=True
    )
    exact, small, large, kept = done.stdout.split()
    assert exact == "True" and kept == "True"
    assert 35e6 < int(small) < 60e6 and 95e6 < int(large) < 120e6


def test_a_watch_samples_where_the_peak_cannot_be_reset(monkeypatch):
    monkeypatch.setattr(peak_memory, "CLEAR", Path("/nonexistent/clear_refs"))
    with peak_memory.Watch(CPU) as watch:
        held = torch.ones(20_000_000)
        for _ in range(200):
            held.mul_(1.0)
    assert watch.exact is False and watch.grown > 40e6
    assert watch.device == {"peak_allocated": None, "peak_reserved": None}


def test_a_watch_inside_another_is_refused():
    with peak_memory.Watch(CPU), pytest.raises(RuntimeError, match="another Watch"):
        with peak_memory.Watch(CPU):
            pass
    with peak_memory.Watch(CPU) as after:  # the first has ended all the same
        pass
    assert after.grown is not None


def test_devices_keep_their_own_books(monkeypatch):
    assert set(peak_memory.on_device(CPU).values()) == {None}
    numbers = {"memory_allocated": 1, "memory_reserved": 2}
    numbers |= {"max_memory_allocated": 3, "max_memory_reserved": 4}
    for name, value in numbers.items():
        monkeypatch.setattr(torch.cuda, name, lambda value=value: value)
    assert list(peak_memory.on_device(GPU).values()) == [1, 2, 3, 4]
    resets = []
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda: resets.append(1))
    with peak_memory.Watch(GPU) as watch:
        pass
    assert resets == [1] and watch.device == {"peak_allocated": 3, "peak_reserved": 4}
    monkeypatch.setattr(torch.mps, "current_allocated_memory", lambda: 5)
    monkeypatch.setattr(torch.mps, "driver_allocated_memory", lambda: 6)
    assert list(peak_memory.on_device(MPS).values()) == [5, 6, None, None]


def test_without_proc_there_is_still_a_peak(monkeypatch):
    monkeypatch.setattr(peak_memory, "STATUS", Path("/nonexistent/status"))
    now = peak_memory.process()
    assert now["anonymous"] is None and now["files"] is None
    assert now["peak_resident"] > 50e6
