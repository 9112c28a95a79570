"""Batching: small schedules worked out by hand, limits, and what must hold for any workload."""

import pytest

from utils import batching
from utils.batching import Request


def free(tokens):
    return 0.0


def one(rows):
    return 1.0


def by_row(rows):
    return 1.0 + 0.5 * rows


THREE = [Request(0, 1, 2), Request(0, 1, 4), Request(0, 1, 3)]


def times(run):
    return [(s.start, s.finish) for s in run.served]


def test_static_by_hand():
    """Two slots: answers of 2 and 4 take 3 steps after the prompts, then one of 3 takes 2."""
    run = batching.static(THREE, 2, free, one)
    assert times(run) == [(0, 3), (0, 3), (3, 5)]
    assert (run.rows, run.useful) == (2 * (1 + 3) + 1 * (1 + 2), (2 + 4) + 3)
    assert run.waste == pytest.approx(2 / 11)
    assert run.throughput == pytest.approx(9 / 5)


def test_continuous_by_hand():
    """The third text takes the first one's slot after 1 step; all is over after 3."""
    run = batching.continuous(THREE, 2, free, one)
    assert times(run) == [(0, 1), (0, 3), (1, 3)]
    assert run.waste == 0 and run.rows == 9
    assert run.throughput == pytest.approx(9 / 3)


def test_costs_by_hand():
    """Prompts of 4 and 2 at 0.1 s a token; steps cost 1 s and half a second for each row."""
    requests = [Request(0, 4, 3), Request(0, 2, 2)]

    def prompt(tokens):
        return 0.1 * tokens

    run = batching.static(requests, 2, prompt, by_row)
    assert times(run) == [(0, pytest.approx(0.1 * 8 + 2 * 2.0))] * 2
    assert run.rows == 2 * (4 + 2) and run.useful == 4 + 2 + 2 + 1
    run = batching.continuous(requests, 2, prompt, by_row)
    assert times(run) == [
        (0, pytest.approx(0.6 + 2.0 + 1.5)),
        (0, pytest.approx(0.6 + 2.0)),
    ]


def test_a_prompt_that_comes_in_holds_up_the_others():
    requests = [Request(0, 1, 3), Request(0.5, 10, 1)]
    run = batching.continuous(requests, 2, lambda tokens: 0.1 * tokens, one)
    assert times(run) == [
        (0, pytest.approx(0.1 + 1 + 1.0 + 1)),
        (pytest.approx(1.1), pytest.approx(2.1)),
    ]


def test_who_comes_later_waits_for_the_whole_static_batch():
    requests = [Request(0, 1, 6), Request(0.1, 1, 2)]
    late = batching.static(requests, 4, free, one).served[1]
    assert (late.start, late.finish, late.latency) == (5, 6, pytest.approx(5.9))
    early = batching.continuous(requests, 4, free, one).served[1]
    assert (early.start, early.finish) == (1, 2)


def test_idle_server_waits_for_the_next_arrival():
    requests = [Request(0, 1, 2), Request(10, 1, 2)]
    for serve in (batching.static, batching.continuous):
        assert times(serve(requests, 2, free, one)) == [(0, 1), (10, 11)]


def test_answers_of_one_token_need_no_step():
    requests = [Request(0, 1, 1), Request(0, 1, 1), Request(0, 1, 2)]
    run = batching.continuous(requests, 2, lambda tokens: 1.0, one)
    assert times(run) == [(0, 1), (0, 1), (1, 3)]


def test_more_slots_than_requests_change_nothing():
    for serve in (batching.static, batching.continuous):
        assert serve(THREE, 3, free, by_row) == serve(THREE, 30, free, by_row)


def test_one_slot_is_a_queue_in_both():
    requests = batching.workload(20, 0.3, seed=1)
    static, continuous = (
        serve(requests, 1, lambda t: 0.01 * t, one)
        for serve in (batching.static, batching.continuous)
    )
    assert static.waste == continuous.waste == 0
    for a, b in zip(static.served, continuous.served, strict=True):
        assert (a.start, a.finish) == (pytest.approx(b.start), pytest.approx(b.finish))


@pytest.mark.parametrize("seed", range(5))
def test_every_request_is_served_once_and_after_it_came(seed):
    requests = batching.workload(60, 2.0, seed=seed)
    for serve in (batching.static, batching.continuous):
        run = serve(requests, 8, lambda t: 0.002 * t, lambda rows: 0.02 + 0.002 * rows)
        assert [s.request for s in run.served] == requests
        assert all(s.request.arrival <= s.start < s.finish for s in run.served)
        assert run.useful == sum(r.prompt + r.output - 1 for r in requests)
        assert 0 <= run.waste < 1


def test_continuous_wins_when_lengths_vary_and_draws_when_they_do_not():
    varied = [Request(0, 8, n) for n in (4, 60, 8, 40, 5, 64, 16, 30)]
    equal = [Request(0, 8, 32) for _ in range(8)]
    fast = batching.continuous(varied, 4, free, one).throughput
    assert fast > 1.3 * batching.static(varied, 4, free, one).throughput
    same = batching.continuous(equal, 4, free, one)
    assert same.throughput == batching.static(equal, 4, free, one).throughput


def test_latency_is_the_nearest_rank():
    requests = [Request(0, 1, n) for n in (2, 3, 4, 5)]
    run = batching.continuous(requests, 4, free, one)
    assert [run.latency(share) for share in (0.25, 0.5, 0.51, 0.75, 0.95, 1)] == [1, 2, 3, 3, 4, 4]
    for share in (0, 1.01):
        with pytest.raises(ValueError, match="share"):
            run.latency(share)


def test_step_table_is_linear_between_the_measured_rows():
    seconds = batching.step_table({4: 7.0, 1: 1.0, 8: 9.0})
    assert [seconds(rows) for rows in (1, 2, 3, 4, 6, 8)] == [1, 3, 5, 7, 8, 9]
    for rows in (0, 9):
        with pytest.raises(ValueError, match="measured from 1 to 8"):
            seconds(rows)
    with pytest.raises(ValueError, match="start with 1 row"):
        batching.step_table({2: 1.0})


def test_workload_is_the_same_for_the_same_seed_and_within_its_ends():
    first, again = (batching.workload(300, 5.0, (8, 64), (4, 128), seed=3) for _ in range(2))
    assert first == again != batching.workload(300, 5.0, (8, 64), (4, 128), seed=4)
    assert {r.prompt for r in first} <= set(range(8, 65))
    assert {r.output for r in first} <= set(range(4, 129))
    gaps = [b.arrival - a.arrival for a, b in zip(first, first[1:], strict=False)]
    assert sum(gaps) / len(gaps) == pytest.approx(1 / 5, rel=3 / 300**0.5)
    below = sum(r.output <= (4 * 128) ** 0.5 for r in first) / 300  # half: log-uniform
    assert below == pytest.approx(0.5, abs=3 * 0.5 / 300**0.5)


def test_bad_input_is_named():
    with pytest.raises(ValueError, match="slots=0"):
        batching.static(THREE, 0, free, one)
    with pytest.raises(ValueError, match="0 requests"):
        batching.continuous([], 2, free, one)
    with pytest.raises(ValueError, match="prompt and output"):
        batching.static([Request(0, 1, 0)], 2, free, one)
    with pytest.raises(ValueError, match="per_second"):
        batching.workload(3, 0)
    for ends in ((0, 4), (8, 4)):
        with pytest.raises(ValueError, match=f"lengths from {ends[0]} to {ends[1]}"):
            batching.workload(3, 1.0, prompt=ends)


@pytest.mark.parametrize("serve", [batching.static, batching.continuous])
@pytest.mark.parametrize("bad", [(float("nan"), 1, 2), (-1, 1, 2), (0, 1, 1.5), (0, 0, 2)])
def test_a_request_that_could_never_end_is_refused(serve, bad):
    """Half a token would be left over, or the clock would never reach the arrival."""
    with pytest.raises(ValueError, match="prompt and output"):
        serve([Request(0, 1, 2), Request(*bad)], 2, free, one)
