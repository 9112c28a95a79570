"""Memory by name: what a process has mapped, what it holds, what came from files, and its peaks.

    process()           virtual, resident, anonymous, files, peak_resident of this process
    on_device(device)   allocated, reserved and their peaks, by the device's allocator
    with Watch() as w:  the peak of one block, not of everything since the process began

Sources: proc_pid_status(5) for the process, proc_pid_clear_refs(5) for resetting its peak;
PyTorch's memory statistics for CUDA, ROCm and MPS. What can't be had here is None, never 0.
But: the page cache is the kernel's. A file that was read, not mapped, is in none of these figures.
"""

import sys
import threading
from pathlib import Path

import psutil
import torch

from utils.device import detect

STATUS = Path("/proc/self/status")
CLEAR = Path("/proc/self/clear_refs")
FIELDS = {"anonymous": "RssAnon", "files": "RssFile", "peak_resident": "VmHWM"}
SAMPLE_SECONDS = 0.001
_earlier_peak = 0  # what VmHWM said before a Watch reset it
_open = []  # the Watch that is measuring, if any


def process():
    """Bytes of this process.

    virtual: addresses that it may use, backed by memory or not. resident: pages in main memory now.
    anonymous: resident and its own. files: resident and backed by a mapped file, shared with
    others. peak_resident: the most that ever was resident.
    """
    now = psutil.Process().memory_info()
    figures = {"virtual": now.vms, "resident": now.rss} | dict.fromkeys(FIELDS)
    figures |= {name: _status(field) for name, field in FIELDS.items()}
    peak = figures["peak_resident"] or _rusage_peak()
    figures["peak_resident"] = max(peak, _earlier_peak) if peak else None
    return figures


def on_device(device=None):
    """Bytes by the allocator of a CUDA, ROCm or MPS device; None each on a CPU.

    allocated: live tensors. reserved: taken from the driver, whether in use or kept for later; this
    is what nvidia-smi sees, plus the driver's own. peak_…: the most since the start or a Watch.
    """
    device = device or detect()
    figures = dict.fromkeys(("allocated", "reserved", "peak_allocated", "peak_reserved"))
    if device.kind in ("cuda", "rocm"):
        figures["allocated"] = torch.cuda.memory_allocated()
        figures["reserved"] = torch.cuda.memory_reserved()
        figures["peak_allocated"] = torch.cuda.max_memory_allocated()
        figures["peak_reserved"] = torch.cuda.max_memory_reserved()
    if device.kind == "mps":  # it keeps no peak
        figures["allocated"] = torch.mps.current_allocated_memory()
        figures["reserved"] = torch.mps.driver_allocated_memory()
    return figures


class Watch:
    """The peak of a block. After it: `grown`, peak minus start of the resident set, in bytes;
    `exact`: kept by the kernel, else sampled every millisecond; `device`: peaks of on_device.

    One at a time: a second one inside would reset the marks of the first, so RuntimeError."""

    def __init__(self, device=None):
        self._device = device or detect()
        self.grown, self.exact, self.device = None, None, None

    def __enter__(self):
        if _open:
            raise RuntimeError("another Watch is measuring: end it before you start this one")
        if self._device.kind in ("cuda", "rocm"):
            torch.cuda.reset_peak_memory_stats()
        self.exact = _reset_peak()
        self._start = psutil.Process().memory_info().rss
        self._sampled = self._start
        self._done = threading.Event()
        if not self.exact:
            self._thread = threading.Thread(target=self._sample, daemon=True)
            self._thread.start()
        _open.append(self)
        return self

    def __exit__(self, *_):
        _open.remove(self)
        self._done.set()
        if not self.exact:
            self._thread.join()
        peak = _status("VmHWM") if self.exact else self._sampled
        self.grown = max(0, peak - self._start)
        self.device = {k: v for k, v in on_device(self._device).items() if k.startswith("peak")}

    def _sample(self):
        own = psutil.Process()
        while not self._done.wait(SAMPLE_SECONDS):
            self._sampled = max(self._sampled, own.memory_info().rss)


def _status(field):
    """Bytes of a line of /proc/self/status; None where there is none."""
    try:
        text = STATUS.read_text(encoding="utf-8")
        return int(text.split(f"{field}:")[1].split()[0]) * 1024
    except (OSError, IndexError):
        return None


def _reset_peak():
    """Whether VmHWM could be set back to the present."""
    global _earlier_peak
    before = _status("VmHWM")
    try:
        CLEAR.write_text("5", encoding="ascii")
    except OSError:
        return False
    _earlier_peak = max(_earlier_peak, before or 0)
    return before is not None


def _rusage_peak():
    """The peak by getrusage, which also counts the parent of a forked process; None on Windows."""
    try:
        import resource
    except ImportError:
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
