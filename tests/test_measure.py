"""utils.measure: fair timing with a fake clock (field cases 33–35, 38), named memory.

The other cases on measurement: 34 on devices in test_device.py, 36 in test_quality.py, 37 in
test_quantize_model.py, 52 in test_energy.py and test_load.py.
"""

import codecs
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from small_engine import PROMPT

from utils import measure, models
from utils.device import Device
from utils.engine import Engine
from utils.speculative.drafting import ModelDrafter


class Clock:
    """A clock that moves only when told to; a spy on synchronisation shares its log."""

    def __init__(self):
        self.now, self.log = 0.0, []

    def __call__(self):
        self.log.append("clock")
        return self.now

    def sleep(self, seconds):
        self.now += seconds
        self.log.append("work")


class SpyDevice(Device):
    def synchronize(self):
        self.name.log.append("sync")


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def spy(clock):
    return SpyDevice("cpu", clock, 1, None)


def test_decode_rate_counts_gaps_and_end_to_end_counts_all(clock, spy):
    timer = measure.GenerationTimer(spy, clock)
    timer.start()
    clock.sleep(1.0)
    timer.token()
    for _ in range(99):
        clock.sleep(4 / 99)
        timer.token()
    assert timer.tokens == 100 and timer.ttft == 1.0
    assert timer.decode_tokens_per_second == pytest.approx(24.75)
    assert timer.end_to_end_tokens_per_second == pytest.approx(20)
    assert len(timer.itl) == 99 and timer.tpot == pytest.approx(4 / 99)


def test_end_to_end_is_ttft_and_the_gaps(clock, spy):
    timer = measure.GenerationTimer(spy, clock)
    timer.start()
    for gap in (2.0, 0.5, 0.25, 1.25):
        clock.sleep(gap)
        timer.token()
    assert timer.end_to_end == 4.0 == timer.ttft + sum(timer.itl)
    assert timer.end_to_end == pytest.approx(timer.ttft + (timer.tokens - 1) * timer.tpot)


def test_an_early_stop_counts_the_tokens_that_came(clock, spy):
    timer = measure.GenerationTimer(spy, clock)
    timer.start()
    for _ in range(3):
        clock.sleep(0.5)
        timer.token()
    assert timer.tokens == 3 and timer.end_to_end_tokens_per_second == pytest.approx(2)


def test_a_burst_counts_ids_not_arrivals(clock, spy):
    timer = measure.GenerationTimer(spy, clock)
    timer.start()
    for burst in (1, 4, 2):
        clock.sleep(1.0)
        timer.token(burst)
    assert timer.tokens == 7 and timer.tpot == pytest.approx(2 / 6)
    assert timer.itl == [1, 0, 0, 0, 1, 0]


@pytest.fixture(scope="module")
def engine():
    return Engine(models.tiny(), backend="torch", max_tokens=128)


def test_ids_of_a_real_stream_are_counted_with_and_without_drafts(engine, clock, spy):
    timer = measure.GenerationTimer(spy, clock)
    timer.start()
    for _ in engine.stream(PROMPT, 24, eos_token_id=()):
        timer.token()
    assert timer.tokens == 24
    drafted = measure.GenerationTimer(spy, clock)
    drafted.start()
    made = engine.generate(
        PROMPT,
        24,
        eos_token_id=(),
        drafter=ModelDrafter(models.tiny()),
        k=3,
        on_token=lambda token: drafted.token(),
    )
    assert drafted.tokens == 24 == len(made.tokens[0])
    assert made.stats.target_forwards < 24  # fewer forwards than ids: chunks would be too few


def test_case_38_a_chunk_of_text_is_not_an_id(clock, spy):
    """Four ids, one byte each, make one character: a decoder holds three of them back."""
    ids = list("😀".encode())
    decoder = codecs.getincrementaldecoder("utf-8")()
    timer = measure.GenerationTimer(spy, clock)
    timer.start()
    chunks = []
    for i in ids:
        clock.sleep(1.0)
        timer.token()
        chunks += [piece for piece in [decoder.decode(bytes([i]))] if piece]
    assert len(chunks) == 1 and timer.tokens == 4
    assert timer.end_to_end_tokens_per_second == 1.0


def test_a_timer_starts_afresh_and_says_what_it_lacks(clock, spy):
    timer = measure.GenerationTimer(spy, clock)
    with pytest.raises(RuntimeError, match="start"):
        timer.token()
    timer.start()
    with pytest.raises(ValueError, match="1 tokens"):
        _ = timer.ttft
    clock.sleep(1)
    timer.token()
    with pytest.raises(ValueError, match="2 tokens"):
        _ = timer.tpot
    with pytest.raises(ValueError, match="n=-1"):
        timer.token(-1)
    timer.token()
    with pytest.raises(ValueError, match="at once"):
        _ = timer.decode_tokens_per_second
    timer.start()
    assert timer.tokens == 0


def test_compare_synchronises_before_both_clock_reads(clock, spy):
    measure.compare({"a": lambda: clock.sleep(1)}, repeats=2, device=spy, clock=clock)
    assert clock.log == ["sync", "clock", "work", "sync", "clock"] * 3


def test_generation_timer_synchronises_before_each_clock_read(clock, spy):
    timer = measure.GenerationTimer(spy, clock)
    timer.start()
    timer.token()
    assert clock.log == ["sync", "clock", "sync", "clock"]


def test_a_slow_first_call_is_left_out(clock, spy):
    calls = []

    def slow_at_first():
        calls.append(1)
        clock.sleep(100 if len(calls) == 1 else 1)

    timings = measure.compare({"a": slow_at_first}, repeats=5, device=spy, clock=clock)
    assert timings["a"].samples == (1.0,) * 5


def test_swapping_the_arms_changes_nothing_under_drift(clock, spy):
    """The machine slows down by 10 % with each call; the ratio of the arms stays near 2."""

    def arms(order):
        work = {"a": 2.0, "b": 1.0}
        return {
            name: lambda s=work[name]: clock.sleep(s * 1.02 ** len(clock.log)) for name in order
        }

    ratios = []
    for order in ("ab", "ba"):
        clock.log.clear()
        timings = measure.compare(arms(order), repeats=8, device=spy, clock=clock)
        ratios.append(timings.ratio("a", "b").median)
    assert ratios[0] == pytest.approx(ratios[1], rel=0.15)
    assert ratios[0] == pytest.approx(2, rel=0.15)


def test_arms_take_turns_in_every_round(clock, spy):
    seen = []
    arms = {name: lambda name=name: seen.append(name) for name in "abc"}
    measure.compare(arms, repeats=3, device=spy, clock=clock)
    rounds = ["".join(seen[i : i + 3]) for i in range(0, len(seen), 3)]
    assert rounds == ["abc", "abc", "bca", "cab"]


def test_median_and_quartiles():
    timing = measure.Timing((1.0, 2.0, 3.0, 4.0, 100.0))
    assert (timing.q1, timing.median, timing.q3) == (2.0, 3.0, 4.0)
    assert str(timing) == "3000.00 ms [2000.00, 4000.00]"
    assert timing.mean == 22.0


@pytest.mark.parametrize("candidates, repeats", [({}, 3), ({"a": print}, 0)])
def test_compare_refuses_nothing_to_time(candidates, repeats):
    with pytest.raises(ValueError, match="need candidates"):
        measure.compare(candidates, repeats)


def test_memory_is_named_or_absent_never_zero(monkeypatch):
    here = measure.memory(Device("cpu", "", 1, None))
    assert here["peak_resident"] > 50e6
    assert here["peak_allocated"] is None and here["allocated"] is None
    assert measure.format_bytes(None) == "n/a"
    assert measure.format_bytes(538_060_032) == "538.1 MB"
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda: 7)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda: 5)
    assert measure.memory(Device("rocm", "", 1, None))["peak_allocated"] == 7


ALLOCATES = """
import torch
from utils import measure
before = measure.memory()["peak_resident"]
held = torch.ones(40_000_000)
print(measure.memory()["peak_resident"] - before)
"""


def test_peak_resident_sees_an_allocation():
    """In a process of its own: an earlier test's peak would hide this one."""
    root = Path(__file__).resolve().parents[1]
    done = subprocess.run(
        [sys.executable, "-c", ALLOCATES], cwd=root, capture_output=True, text=True, check=True
    )
    assert int(done.stdout) > 100e6


def test_read_bandwidth_is_a_plausible_rate():
    assert 1e8 < measure.read_bandwidth(Device("cpu", "", 1, None), megabytes=8, repeats=2) < 1e13
