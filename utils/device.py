"""What this machine can compute with: kind, native dtypes, memory and threads.

Everything is decided by capability, never by a product's name. What it does not do: it moves no
model and times nothing (see `models.py`, `measure.py`).

Sources: compute capability 8.0 is the first with native bfloat16 and 8.9 the first with FP8
(NVIDIA, CUDA C++ Programming Guide, "Compute Capabilities"); ROCm builds of PyTorch answer to
`torch.cuda` and are told apart by `torch.version.hip`; container limits are the control group
files `cpu.max` and `memory.max` (Linux kernel, "Control Group v2").
"""

import contextlib
import importlib.metadata
import os
import platform
from dataclasses import dataclass, field
from pathlib import Path

import torch

CGROUP = Path("/sys/fs/cgroup")
BF16_CAPABILITY = (8, 0)
FP8_CAPABILITY = (8, 9)
KINDS = ("cuda", "rocm", "mps", "cpu")


@dataclass(frozen=True)
class Device:
    """One compute device.

    kind: "cuda", "rocm", "mps" or "cpu".  threads: CPU threads within the container's quota.
    memory_bytes: the device's memory within the container's limit, None where it can't be read.
    dtypes: names of the dtypes the device multiplies natively, widest first.
    """

    kind: str
    name: str
    threads: int
    memory_bytes: int | None
    dtypes: tuple[str, ...] = field(default=("float32",))

    @property
    def torch(self):
        """The `torch.device` to move tensors to (ROCm answers to "cuda" in PyTorch)."""
        return torch.device("cuda" if self.kind == "rocm" else self.kind)

    @property
    def compute_dtype(self):
        """The dtype that models are computed in here: the fastest native one that is safe."""
        if self.kind == "cpu":
            return torch.float32
        fastest_first = ("bfloat16", "float16", "float32")
        return getattr(torch, next(name for name in fastest_first if name in self.dtypes))

    def synchronize(self):
        """Wait until all work queued on the device is done (nothing to wait for on a CPU)."""
        if self.kind in ("cuda", "rocm"):
            torch.cuda.synchronize()
        elif self.kind == "mps":
            torch.mps.synchronize()


def detect(prefer=None):
    """The best device here, or the one asked for.

    prefer: one of "cuda", "rocm", "mps", "cpu", or None.
    Raises ValueError when the kind is unknown or not here; the message lists what is.
    """
    here = available()
    if prefer is None:
        return _describe(here[0])
    if prefer not in KINDS:
        raise ValueError(f"unknown device kind {prefer!r}: use one of {', '.join(KINDS)}")
    if prefer not in here:
        raise ValueError(f"device kind {prefer!r} is not here: this machine has {', '.join(here)}")
    return _describe(prefer)


def available():
    """Kinds of device on this machine, best first; "cpu" is always the last."""
    kinds = []
    if torch.cuda.is_available():
        kinds.append("rocm" if torch.version.hip else "cuda")
    if torch.backends.mps.is_available():
        kinds.append("mps")
    return [*kinds, "cpu"]


def _describe(kind):
    threads = cpu_threads()
    if kind in ("cuda", "rocm"):
        properties = torch.cuda.get_device_properties(0)
        dtypes = cuda_dtypes(torch.cuda.get_device_capability(0), hip=kind == "rocm")
        return Device(kind, properties.name, threads, properties.total_memory, dtypes)
    if kind == "mps":
        memory = torch.mps.recommended_max_memory()
        return Device(kind, platform.processor() or "Apple GPU", threads, memory, probe("mps"))
    return Device(kind, platform.machine() or "CPU", threads, cpu_memory_bytes(), cpu_dtypes())


def cuda_dtypes(capability, hip=False):
    """Native dtypes of a CUDA device by compute capability; a ROCm device is probed instead."""
    if hip:
        return probe("cuda")
    names = ["float32", "float16"]
    if capability >= BF16_CAPABILITY:
        names.append("bfloat16")
    if capability >= FP8_CAPABILITY:
        names.append("float8_e4m3fn")
    return tuple(names)


def cpu_dtypes():
    """float32, and bfloat16 only where the CPU multiplies it (AVX512-BF16, AMX, Arm BF16)."""
    flags = cpu_flags()
    native = {"avx512_bf16", "amx_bf16", "bf16"}
    return ("float32", "bfloat16") if flags & native else ("float32",)


def cpu_flags():
    """The CPU's instruction set flags as Linux lists them; an empty set where it lists none."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return set()
    lines = [line for line in text.splitlines() if line.lower().startswith(("flags", "features"))]
    return set(lines[0].split(":", 1)[1].split()) if lines else set()


def probe(torch_kind):
    """Dtypes in which a small product on the device succeeds and is right."""
    good = []
    for name in ("float32", "float16", "bfloat16"):
        try:
            x = torch.full((8, 8), 0.5).to(getattr(torch, name)).to(torch_kind)
            if torch.equal((x @ x).float().cpu(), torch.full((8, 8), 2.0)):
                good.append(name)
        except (RuntimeError, TypeError):
            continue
    return tuple(good) or ("float32",)


def cpu_threads(cgroup=CGROUP):
    """Threads that this process may really use: affinity, cut to the container's CPU quota."""
    affinity = getattr(os, "sched_getaffinity", None)
    cores = len(affinity(0)) if affinity else os.cpu_count() or 1
    quota = _cpu_quota(cgroup)
    return max(1, min(cores, int(quota))) if quota else cores


@contextlib.contextmanager
def one_torch_thread():
    """torch runs on one thread inside this block.

    Its other threads spin for milliseconds after each operation that used them, on cores that the
    engine's own threads want: small torch operations between two steps can double a step's time.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _cpu_quota(cgroup):
    """Cores allowed by the control group (v2, then v1); None without a limit."""
    try:
        quota, period = (cgroup / "cpu.max").read_text().split()
    except (OSError, ValueError):
        try:
            quota = (cgroup / "cpu" / "cpu.cfs_quota_us").read_text().strip()
            period = (cgroup / "cpu" / "cpu.cfs_period_us").read_text().strip()
        except OSError:
            return None
    return None if quota in ("max", "-1") else int(quota) / int(period)


def cpu_memory_bytes(cgroup=CGROUP):
    """Main memory, cut to the container's limit; None where neither can be read."""
    sizes = []
    for file in (cgroup / "memory.max", cgroup / "memory" / "memory.limit_in_bytes"):
        try:
            text = file.read_text().strip()
        except OSError:
            continue
        if text.isdigit():
            sizes.append(int(text))
    try:
        sizes.append(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    except (AttributeError, ValueError, OSError):
        pass
    return min(sizes) if sizes else None


PACKAGES = ("torch", "transformers", "numpy")


def versions(packages=PACKAGES):
    """Versions of Python and of the packages that decide results; "absent" if not installed."""
    found = {"python": platform.python_version()}
    for package in packages:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = "absent"
    return found


def report(device=None):
    """A few lines that say what a notebook runs on: the first thing each notebook prints."""
    device = device or detect()
    memory = f"{device.memory_bytes / 2**30:.1f} GiB" if device.memory_bytes else "n/a"
    lines = [
        f"device    {device.kind} ({device.name}), memory {memory}, {device.threads} CPU threads "
        f"({torch.backends.cpu.get_cpu_capability()})",
        f"dtypes    native {', '.join(device.dtypes)}; models are computed in "
        f"{str(device.compute_dtype).removeprefix('torch.')}",
        "versions  " + ", ".join(f"{name} {version}" for name, version in versions().items()),
    ]
    return "\n".join(lines)
