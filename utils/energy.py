"""Joules and what they cost: counters where the machine has them, a reason where it has none.

    find(device)             (counter, "") or (None, why not)
    measure(function)        Energy: joules (None: not measurable here), seconds, source
    joules, kwh, joules_per_token, dollars_per_million_tokens: the arithmetic

Counters: RAPL through Linux powercap, microjoules per processor package, wrapping around at
max_energy_range_uj (Linux kernel, "Power Capping Framework"); NVML's total energy of a GPU in
millijoules since the driver was loaded (NVIDIA, nvmlDeviceGetTotalEnergyConsumption, Volta on).
A package can show up twice, as intel-rapl-mmio or once per die (codecarbon, pull request 950 and
issue 1274); it is counted once.
But: a counter sees its own chip and everything that runs there, not the plug: no fans, no power
supply, and with RAPL packages no main memory. Nothing is estimated from data sheets.
"""

import ctypes
import math
import time
from dataclasses import dataclass
from pathlib import Path

import torch

from utils.device import detect

POWERCAP = Path("/sys/class/powercap")
JOULES_PER_KWH = 3_600_000
SAME_COUNTER_UJ = 1_000_000  # two dies that read the same within 1 J show one counter twice
NVML_LIBRARIES = ("libnvidia-ml.so.1", "nvml.dll")


class NotMeasurable(Exception):
    """No counter here; the text says why."""


@dataclass(frozen=True)
class Energy:
    """joules: None where nothing could be read; then `reason` says why. seconds: wall clock."""

    joules: float | None
    seconds: float
    source: str
    reason: str = ""

    @property
    def watts(self):
        return None if self.joules is None else self.joules / self.seconds

    def __str__(self):
        if self.joules is None:
            return f"not measurable here: {self.reason}"
        return f"{self.joules:.2f} J in {self.seconds:.2f} s, {self.watts:.1f} W ({self.source})"


def find(device=None, powercap=POWERCAP, load=None):
    """(counter, "") for this device, or (None, reason). load: opens the NVML library, for tests."""
    device = device or detect()
    try:
        if device.kind == "cuda":
            return Nvml(load or _load_nvml), ""
        if device.kind == "cpu":
            return Rapl(powercap), ""
        raise NotMeasurable(f"no energy counter is known for a device of kind {device.kind!r}")
    except NotMeasurable as reason:
        return None, str(reason)


def measure(function, device=None, counter=None, clock=time.perf_counter):
    """Run `function` and read the counter before and after, each time after synchronising.

    Let it run for a few seconds: RAPL moves every millisecond, NVML every 20 to 100 ms
    on newer GPUs (PETSc manual, PetscLogGpuEnergyMeter).
    Not for many minutes: a RAPL counter that wraps around twice can't be told from one that wraps
    once (262 kJ, a usual range, are 22 minutes at 200 W).
    """
    device = device or detect()
    reason = ""
    if counter is None:
        counter, reason = find(device)
    device.synchronize()
    before = counter.read() if counter else None
    start = clock()
    function()
    device.synchronize()
    seconds = clock() - start
    if counter is None:
        return Energy(None, seconds, "", reason)
    try:
        return Energy(counter.between(before, counter.read()), seconds, counter.source)
    except NotMeasurable as lost:
        return Energy(None, seconds, "", str(lost))


class Rapl:
    """Energy of all processor packages. read(): {zone: microjoules}."""

    def __init__(self, powercap=POWERCAP):
        if not powercap.is_dir():
            raise NotMeasurable(f"no {powercap}: the kernel or the virtual machine hides RAPL")
        self._zones = _unmirrored([z for z in sorted(powercap.iterdir()) if _is_package(z)])
        if not self._zones:
            raise NotMeasurable(f"{powercap} has no zone named package-…")
        self._range = {z: _number(z / "max_energy_range_uj") for z in self._zones}
        self.source = f"RAPL, {len(self._zones)} package(s)"
        self.read()

    def read(self):
        return {zone: _number(zone / "energy_uj") for zone in self._zones}

    def between(self, before, after):
        """Joules from one reading to the next; each zone may have wrapped around once."""
        total = 0
        for zone, start in before.items():
            used = after[zone] - start
            total += used if used >= 0 else used + self._range[zone]
        return total / 1e6


class Nvml:
    """Energy of the GPU that PyTorch uses. read(): millijoules since the driver was loaded.

    Found by its UUID: NVML's numbers ignore CUDA_VISIBLE_DEVICES and CUDA's order.
    """

    def __init__(self, load):
        self._library = load()
        self._handle = ctypes.c_void_p()
        self._call("nvmlInit_v2")
        uuid = f"GPU-{torch.cuda.get_device_properties(torch.cuda.current_device()).uuid}"
        self._call("nvmlDeviceGetHandleByUUID", uuid.encode(), ctypes.byref(self._handle))
        self.source = "NVML, one GPU"
        self.read()

    def read(self):
        value = ctypes.c_ulonglong()
        self._call("nvmlDeviceGetTotalEnergyConsumption", self._handle, ctypes.byref(value))
        return value.value

    def between(self, before, after):
        """Joules from one reading to the next."""
        return (after - before) / 1e3

    def _call(self, name, *arguments):
        code = getattr(self._library, name)(*arguments)
        if code != 0:
            raise NotMeasurable(f"{name} answers with error {code}")


def _load_nvml():
    for name in NVML_LIBRARIES:
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    raise NotMeasurable("the NVML library of the NVIDIA driver can't be opened")


def _is_package(zone):
    """Packages alone: subzones are parts, psys contains them, intel-rapl-mmio repeats them."""
    if zone.name.startswith("intel-rapl-mmio"):
        return False
    try:
        return (zone / "name").read_text(encoding="ascii").startswith("package")
    except OSError:
        return False


def _unmirrored(zones):
    """Without the dies that show the counter of an earlier die of their package."""
    kept = {}
    for zone in zones:
        package, die, _ = (zone / "name").read_text(encoding="ascii").partition("-die-")
        start = _number(zone / "energy_uj")
        earlier = [value for name, value in kept.values() if die and name == package]
        if all(abs(start - value) > SAME_COUNTER_UJ for value in earlier):
            kept[zone] = package, start
    return list(kept)


def _number(file):
    try:
        return int(file.read_text(encoding="ascii"))
    except PermissionError:
        raise NotMeasurable(f"{file} is for the administrator only (since Linux 5.10)") from None
    except OSError as error:
        raise NotMeasurable(f"{file} can't be read: {error.strerror}") from None


def joules(watts, seconds):
    """Energy of a constant power. ValueError for less than nothing."""
    if not (0 <= watts < math.inf and 0 <= seconds < math.inf):
        raise ValueError(f"watts={watts}, seconds={seconds}: need finite numbers, 0 or more")
    return watts * seconds


def kwh(energy_joules):
    """Kilowatt-hours: 1 kWh is 3.6 million joules."""
    return energy_joules / JOULES_PER_KWH


def joules_per_token(energy_joules, tokens):
    """Energy shared by the tokens that it made. ValueError without a token."""
    if not tokens >= 1:
        raise ValueError(f"tokens={tokens}: energy per token needs at least one token")
    return energy_joules / tokens


def dollars_per_million_tokens(dollars_per_hour, tokens_per_second):
    """Rent: what a million tokens cost at this price, at this rate of ALL users together."""
    if not tokens_per_second > 0:
        raise ValueError(f"tokens_per_second={tokens_per_second}: must be above 0")
    return dollars_per_hour / (tokens_per_second * 3600) * 1e6


def energy_dollars_per_million_tokens(energy_joules_per_token, dollars_per_kwh):
    """Electricity alone for a million tokens."""
    return kwh(energy_joules_per_token * 1e6) * dollars_per_kwh
