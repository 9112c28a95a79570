"""utils.energy: the arithmetic of field case 52, made-up counters, a made-up library."""

import ctypes
from types import SimpleNamespace

import pytest
import torch
from test_measure import Clock, SpyDevice

from utils import energy
from utils.device import Device

CPU, GPU, MPS = (Device(kind, "", 1, None) for kind in ("cpu", "cuda", "mps"))


def test_case_52_energy_per_token():
    used = energy.joules(300, 10)
    assert used == 3000
    assert energy.kwh(used) == pytest.approx(0.000833, rel=1e-3)
    assert energy.joules_per_token(used, 500) == 6


def test_case_52_dollars_per_million_tokens():
    assert energy.dollars_per_million_tokens(2, 1000) == pytest.approx(0.5556, rel=1e-4)


def test_a_kilowatt_hour_is_3600_kilojoules():
    assert energy.kwh(3_600_000) == 1
    # 6 J a token: 6 MJ a million, 1.667 kWh, at $0.12 each.
    assert energy.energy_dollars_per_million_tokens(6, 0.12) == pytest.approx(0.2)


def test_what_cannot_be_divided_is_refused():
    with pytest.raises(ValueError, match="at least one token"):
        energy.joules_per_token(3000, 0)
    with pytest.raises(ValueError, match="tokens_per_second=0"):
        energy.dollars_per_million_tokens(2, 0)
    with pytest.raises(ValueError, match="tokens_per_second=nan"):
        energy.dollars_per_million_tokens(2, float("nan"))


@pytest.mark.parametrize("watts, seconds", [(-1, 1), (1, -1), (float("nan"), 1), (1, float("inf"))])
def test_energy_is_not_negative_and_finite(watts, seconds):
    with pytest.raises(ValueError, match=f"watts={watts}"):
        energy.joules(watts, seconds)


def zone(folder, number, name, start, limit=10_000_000):
    path = folder / (number if "rapl" in number else f"intel-rapl:{number}")
    path.mkdir(parents=True)
    (path / "name").write_text(f"{name}\n")
    (path / "energy_uj").write_text(f"{start}\n")
    (path / "max_energy_range_uj").write_text(f"{limit}\n")
    return path


@pytest.fixture
def powercap(tmp_path):
    """Two packages; a part of the first and the whole platform, which must not be added."""
    folder = tmp_path / "powercap"
    zone(folder, "0", "package-0", 1_000_000)
    zone(folder, "0:0", "core", 500_000)
    zone(folder, "1", "package-1", 9_000_000)
    zone(folder, "2", "psys", 4_000_000)
    zone(folder, "intel-rapl-mmio:0", "package-0", 1_000_001)  # the first package by another way
    (folder / "intel-rapl").mkdir()  # the control type: no name of its own
    return folder


def spend(powercap, **microjoules):
    """A function during which the counters move on, modulo their range."""

    def run():
        for number, used in microjoules.items():
            file = powercap / f"intel-rapl:{number.strip('z')}" / "energy_uj"
            file.write_text(str((int(file.read_text()) + used) % 10_000_000))

    return run


def test_rapl_adds_packages_and_nothing_twice(powercap):
    counter, reason = energy.find(CPU, powercap)
    assert reason == "" and counter.source == "RAPL, 2 package(s)"
    before = counter.read()
    spend(powercap, z0=2_500_000, z1=500_000, z2=7_000_000)()
    assert counter.between(before, counter.read()) == pytest.approx(3.0)


def test_dies_that_show_one_counter_count_once(tmp_path):
    """AMD: each die repeats the package. Dies with counters of their own are added."""
    zone(tmp_path, "0", "package-0-die-0", 5_000_000)
    zone(tmp_path, "1", "package-0-die-1", 5_000_200)
    zone(tmp_path, "2", "package-0-die-2", 8_000_000)
    zone(tmp_path, "3", "package-1-die-0", 5_000_000)  # another package: not a mirror
    counter, _ = energy.find(CPU, tmp_path)
    assert counter.source == "RAPL, 3 package(s)"
    before = counter.read()
    spend(tmp_path, z0=1_000_000, z1=1_000_000, z2=500_000, z3=250_000)()
    assert counter.between(before, counter.read()) == pytest.approx(1.75)


def test_a_counter_that_vanishes_is_a_reason(powercap):
    counter, _ = energy.find(CPU, powercap)
    used = energy.measure((powercap / "intel-rapl:1" / "energy_uj").unlink, CPU, counter)
    assert used.joules is None and "can't be read" in used.reason


def test_rapl_wraps_around(powercap):
    counter, _ = energy.find(CPU, powercap)
    before = counter.read()
    spend(powercap, z1=2_000_000)()  # from 9 to 11, which reads as 1
    assert counter.between(before, counter.read()) == pytest.approx(2.0)


def test_energy_of_a_function_is_synchronised_and_divided(powercap):
    clock = Clock()
    spy = SpyDevice("cpu", clock, 1, None)
    counter, _ = energy.find(CPU, powercap)
    work = spend(powercap, z0=3_000_000)

    def two_seconds():
        clock.sleep(2)
        work()

    used = energy.measure(two_seconds, spy, counter, clock)
    assert clock.log == ["sync", "clock", "work", "sync", "clock"]
    assert (used.joules, used.seconds, used.watts) == (pytest.approx(3), 2, pytest.approx(1.5))
    assert str(used) == "3.00 J in 2.00 s, 1.5 W (RAPL, 2 package(s))"


def test_without_a_counter_time_is_kept_and_the_reason_said(tmp_path, monkeypatch):
    monkeypatch.setattr(energy, "find", lambda device: (None, "no counter"))
    used = energy.measure(lambda: None, CPU)
    assert used.joules is None and used.watts is None and used.seconds >= 0
    assert str(used) == "not measurable here: no counter"


def test_reasons(tmp_path, powercap, monkeypatch):
    counter, reason = energy.find(CPU, tmp_path / "absent")
    assert counter is None and "hides RAPL" in reason
    assert "no energy counter is known" in energy.find(MPS)[1]
    empty = tmp_path / "empty"
    empty.mkdir()
    assert "no zone named package" in energy.find(CPU, empty)[1]
    (powercap / "intel-rapl:1" / "energy_uj").unlink()
    assert "can't be read" in energy.find(CPU, powercap)[1]

    def refuse(self, **_):
        if self.name == "energy_uj":
            raise PermissionError(13, "Permission denied")
        return "package-0" if self.name == "name" else "5"

    monkeypatch.setattr(energy.Path, "read_text", refuse)
    assert "administrator" in energy.find(CPU, powercap)[1]


class Library:
    """What NVML does, with the GPU of PyTorch; `energy` is the answer in millijoules."""

    def __init__(self, energy=0, error=0):
        self.energy, self.error = energy, error

    def nvmlInit_v2(self):
        return 0

    def nvmlDeviceGetHandleByUUID(self, uuid, handle):
        assert uuid == b"GPU-12ab"
        handle._obj.value = 77
        return 0

    def nvmlDeviceGetTotalEnergyConsumption(self, handle, value):
        assert isinstance(handle, ctypes.c_void_p) and handle.value == 77
        value._obj.value = self.energy
        return self.error


@pytest.fixture
def second_gpu(monkeypatch):
    """PyTorch's device is number 1, known to NVML by its UUID."""
    known = {1: SimpleNamespace(uuid="12ab")}
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_properties", known.__getitem__)


def test_nvml_counts_millijoules(second_gpu):
    library = Library(1_000)
    counter, reason = energy.find(GPU, load=lambda: library)
    assert reason == "" and counter.source == "NVML, one GPU"
    before = counter.read()
    library.energy += 2**40
    assert counter.between(before, counter.read()) == pytest.approx(2**40 / 1e3)


def test_nvml_says_why_not(second_gpu):
    counter, reason = energy.find(GPU, load=lambda: Library(error=3))
    assert counter is None and "error 3" in reason

    def absent():
        raise energy.NotMeasurable("the NVML library of the NVIDIA driver can't be opened")

    assert "can't be opened" in energy.find(GPU, load=absent)[1]


def test_this_machine_answers_either_way():
    used = energy.measure(lambda: sum(range(1000)))
    assert used.joules is None and used.reason or used.joules >= 0
