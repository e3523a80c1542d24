"""Limits of one peer: generous to the honest, and nobody can lock out somebody else."""

from __future__ import annotations

from swamp.serve import socket_limits
from swamp.serve.socket_limits import Bucket, Failures, Pace


class Time:
    def __init__(self) -> None:
        self.s = 0.0

    def __call__(self) -> float:
        return self.s


def test_a_bucket_lets_a_burst_through_and_then_its_rate() -> None:
    bucket = Bucket(rate=10, most=100, now_s=0)
    assert bucket.take(100, 0) == 0
    assert bucket.take(10, 0) == 1.0
    assert bucket.take(10, 3) == 0
    assert bucket.take(1000, 1000) == 90


def test_frames_and_bytes_have_limits_of_their_own() -> None:
    small = Pace(0)
    waits = [small.take(1, 1, 0) for _ in range(socket_limits.FRAMES_AT_ONCE + 1)]
    assert waits[-2] == 0 < waits[-1]
    large = Pace(0)
    waits = [large.take(1, 4 << 20, 0) for _ in range(17)]
    assert waits[15] == 0 < waits[16]


def test_failures_of_a_token_are_forgotten_after_a_minute() -> None:
    time = Time()
    failures = Failures(time)
    for _ in range(10):
        assert failures.wait_s("a", "w1") == 0
        failures.note("a", "w1")
    assert failures.wait_s("a", "w1") == 60
    assert failures.wait_s("a", "w2") == failures.wait_s("b", "w1") == 0
    time.s = 61
    assert failures.wait_s("a", "w1") == 0


def test_an_address_that_tries_many_names_is_put_off_as_well() -> None:
    failures = Failures(Time())
    for number in range(300):
        failures.note("a", f"w{number}")
    assert failures.wait_s("a", "new") == 60
    assert failures.wait_s("b", "new") == 0


def test_what_is_remembered_has_a_limit() -> None:
    failures = Failures(Time())
    for number in range(socket_limits.REMEMBERED_MOST):
        failures.note(f"a{number}", "w")
    assert len(failures._times) == socket_limits.REMEMBERED_MOST
