"""utils.simulated: the instruments do what the chapter says of them."""

import threading
import time

import pytest

from utils import measure, simulated


def test_submit_returns_before_the_work_is_done():
    go = threading.Event()
    done = []
    with simulated.QueueDevice() as device:
        device.submit(lambda: (go.wait(10), done.append(1)))
        assert not done
        go.set()
        device.synchronize()
        assert done == [1]


def test_jobs_run_in_order_and_take_arguments():
    done = []
    with simulated.QueueDevice() as device:
        for i in range(20):
            device.submit(done.append, i)
        device.synchronize()
    assert done == list(range(20))


def test_close_finishes_what_was_submitted():
    done = []
    device = simulated.QueueDevice()
    device.submit(lambda: (time.sleep(0.02), done.append(1)))
    device.close()
    assert done == [1]


def test_an_error_in_a_job_is_raised_by_the_next_synchronize():
    with simulated.QueueDevice() as device:
        device.submit(lambda: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            device.synchronize()
        device.synchronize()  # told once
    with pytest.raises(ZeroDivisionError), simulated.QueueDevice() as device:
        device.submit(lambda: 1 / 0)  # nobody waits: the end of the block tells


def test_a_closed_device_and_a_negative_capacity_are_refused():
    device = simulated.QueueDevice()
    device.close()
    device.close()  # twice does no harm
    with pytest.raises(RuntimeError, match="closed"):
        device.submit(print)
    with pytest.raises(ValueError, match="capacity=-1"):
        simulated.QueueDevice(-1)


def test_a_full_queue_blocks_submit():
    go = threading.Event()
    with simulated.QueueDevice(capacity=1) as device:
        device.submit(go.wait, 10)
        device.submit(go.wait, 10)  # waits in line (or takes the worker's place in it)
        late = threading.Thread(target=device.submit, args=(go.wait, 10), daemon=True)
        third = threading.Thread(target=device.submit, args=(go.wait, 10), daemon=True)
        late.start(), third.start()
        third.join(0.05)
        assert late.is_alive() or third.is_alive()
        go.set()
        late.join(10), third.join(10)
        assert not late.is_alive() and not third.is_alive()


def test_compare_waits_for_a_queue_device():
    """Without synchronisation the times would be those of submit."""
    with simulated.QueueDevice() as device:
        arms = {"nap": lambda: device.submit(time.sleep, 0.02)}
        timing = measure.compare(arms, repeats=2, device=device)["nap"]
    assert min(timing.samples) >= 0.02


def test_drift_in_blocks_and_in_turns():
    """Two equal arms, drift 1 % a call, 10 calls each: means of calls 0–9 and 10–19."""
    machine = simulated.DriftingMachine(0.01)
    a, b = machine.arm(1.0), machine.arm(1.0)
    start = machine.clock.now
    for _ in range(10):
        a()
    middle = machine.clock.now
    for _ in range(10):
        b()
    assert middle - start == pytest.approx(10.45)
    assert machine.clock.now - middle == pytest.approx(11.45)

    machine = simulated.DriftingMachine(0.01)
    arms = {"a": machine.arm(1.0), "b": machine.arm(1.0)}
    timings = measure.compare(arms, repeats=10, clock=machine.clock)
    assert timings.ratio("b", "a").median == pytest.approx(1, abs=0.01)
