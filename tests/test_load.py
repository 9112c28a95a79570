"""utils.load: a user's speed and everybody's (case 52), and exact replays of a stalled server."""

import math

import pytest

from utils import load
from utils.timing_stats import percentile


def test_one_users_speed_and_everybodys_are_two_fields():
    shared = load.Throughput(tokens=4000, seconds=10, users=8)
    assert shared.aggregate == 400 and shared.per_user == 50
    assert load.Throughput(100, 4).per_user == load.Throughput(100, 4).aggregate == 25


@pytest.mark.parametrize(
    "tokens, seconds, users", [(-1, 1, 1), (1, 0, 1), (1, 1, 0), (1, math.nan, 1)]
)
def test_throughput_refuses(tokens, seconds, users):
    with pytest.raises(ValueError, match="need tokens"):
        load.Throughput(tokens, seconds, users)


def test_without_a_stall_both_clients_agree():
    found = load.replay([1.0] * 5, 2.0)
    assert found.from_plan == found.from_send == (1.0,) * 5


def test_a_stall_by_hand():
    """Due at 0, 2, 4, 6, 8; the second takes 5: done at 1, 7, 8, 9, 10."""
    found = load.replay([1, 5, 1, 1, 1], 2)
    assert found.from_plan == (1, 5, 4, 3, 2)
    assert found.from_send == (1, 5, 1, 1, 1)


def test_the_waiting_client_sees_one_slow_request_of_a_thousand():
    """10 ms each, due every 20 ms, one stall of 1 s: 99 requests are late, each by 10 ms less."""
    service = [0.010] * 1000
    service[500] = 1.0
    found = load.replay(service, 0.020)
    assert sum(s > 0.0101 for s in found.from_plan) == 99
    assert sum(s > 0.0101 for s in found.from_send) == 1
    assert percentile(found.from_send, 0.99) == pytest.approx(0.010)
    assert percentile(found.from_plan, 0.99) == pytest.approx(0.9001)
    assert max(found.from_plan) == max(found.from_send) == pytest.approx(1.0)


def test_replay_refuses():
    with pytest.raises(ValueError, match="interval=0"):
        load.replay([1], 0)
    for service in ([1, -1], [1, math.nan]):
        with pytest.raises(ValueError, match="negative"):
            load.replay(service, 1)
    assert load.replay([], 1).from_plan == ()
