"""The throttle: how often a secret may be guessed."""

from __future__ import annotations

import threading

import pytest

from services.runtime.throttle import Throttle
from tests.services.users.users_support import UsersClock, refused
from viewstamp.api.errors.v1.errors_pb2 import Reason

WINDOW_US = 60_000_000
FAILURES_MAX = 3


def build(clock: UsersClock, keys_max: int = 100) -> Throttle:
    """Return a throttle of 3 failures a minute."""
    return Throttle(clock, failures_max=FAILURES_MAX, window_us=WINDOW_US, keys_max=keys_max)


def fail(throttle: Throttle, key: bytes = b"alice") -> None:
    """Fail once."""
    assert throttle.attempt(key, lambda: False) is False


def demand_refused(throttle: Throttle, key: bytes = b"alice") -> str:
    """Demand that no attempt is made, and return the announced delay."""

    def check() -> bool:
        raise AssertionError("attempted")

    error = refused(Reason.REASON_QUOTA_EXCEEDED, lambda: throttle.attempt(key, check))
    return error.details["retry_delay_ms"]


def test_limit_is_per_key() -> None:
    """The failure that reaches the limit is the last one, and other keys are not concerned."""
    throttle = build(UsersClock())
    for _ in range(FAILURES_MAX):
        fail(throttle)
    assert demand_refused(throttle) == "60000"
    fail(throttle, b"bob")


def test_window_slides() -> None:
    """Each failure counts for exactly one window of its own."""
    clock = UsersClock(0)
    throttle = build(clock)
    for now_us in (0, 10, 20):
        clock.now_us = now_us
        fail(throttle)

    clock.now_us = WINDOW_US - 1
    assert demand_refused(throttle) == "1"
    clock.now_us = WINDOW_US
    fail(throttle)
    demand_refused(throttle)


def test_successes_are_free() -> None:
    """Any number of successes costs nothing and leaves nothing behind."""
    throttle = build(UsersClock())
    for _ in range(10 * FAILURES_MAX):
        assert throttle.attempt(b"alice", lambda: True)
    assert len(throttle) == 0


def test_success_does_not_clear_failures() -> None:
    """A success in between does not give back the failures of the window."""
    throttle = build(UsersClock())
    fail(throttle)
    fail(throttle)
    assert throttle.attempt(b"alice", lambda: True)
    fail(throttle)
    demand_refused(throttle)


def test_defect_is_no_failure() -> None:
    """An exception passes through and does not count."""
    throttle = build(UsersClock())

    def broken() -> bool:
        raise OSError("broken")

    for _ in range(2 * FAILURES_MAX):
        with pytest.raises(OSError, match="broken"):
            throttle.attempt(b"alice", broken)
    assert len(throttle) == 0


def test_clock_set_back() -> None:
    """Failures that now seem to lie in the future do not lock a key for long."""
    clock = UsersClock(10 * WINDOW_US)
    throttle = build(clock)
    for _ in range(FAILURES_MAX):
        fail(throttle)
    clock.now_us = 0
    fail(throttle)


def test_memory_is_bounded() -> None:
    """When memory is full a new key must wait, until old keys no longer count."""
    clock = UsersClock(0)
    throttle = build(clock, keys_max=2)
    fail(throttle, b"one")
    clock.now_us = 10
    fail(throttle, b"two")

    demand_refused(throttle, b"three")
    fail(throttle, b"one")
    assert len(throttle) == 2

    clock.now_us = WINDOW_US + 10
    fail(throttle, b"three")
    assert len(throttle) == 1


def test_attempts_side_by_side_do_not_exceed_the_limit() -> None:
    """Of simultaneous attempts no more are made than may fail; the others wait and are refused."""
    throttle = build(UsersClock())
    release = threading.Event()
    started = threading.Semaphore(0)
    made: list[None] = []
    refusals: list[str] = []

    def check() -> bool:
        made.append(None)
        started.release()
        release.wait()
        return False

    def attempt() -> None:
        try:
            throttle.attempt(b"alice", check)
        except Exception as error:
            refusals.append(type(error).__name__)

    threads = [threading.Thread(target=attempt) for _ in range(3 * FAILURES_MAX)]
    for thread in threads:
        thread.start()
    for _ in range(FAILURES_MAX):
        started.acquire()
    release.set()
    for thread in threads:
        thread.join()

    assert len(made) == FAILURES_MAX
    assert refusals == ["Refusal"] * (2 * FAILURES_MAX)


def test_honest_attempts_side_by_side_all_pass() -> None:
    """More right attempts at once than may fail wait for each other, and none is refused."""
    throttle = build(UsersClock())
    passed: list[bool] = []

    def attempt() -> None:
        passed.append(throttle.attempt(b"alice", lambda: True))

    threads = [threading.Thread(target=attempt) for _ in range(4 * FAILURES_MAX)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert passed == [True] * len(threads)
