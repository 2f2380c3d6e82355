"""Who may try to log in, and when."""

from __future__ import annotations

from functools import partial

import pytest

from services.runtime.login_guard import Attempt, LoginGuard
from tests.services.users.users_support import UsersClock, refused
from viewstamp import limits
from viewstamp.api.errors.v1.errors_pb2 import Reason

HOME = "10.0.0.1"
ROOT = Attempt(HOME, "root", 0)


@pytest.fixture
def guard() -> LoginGuard:
    """Return a guard without history."""
    return LoginGuard(UsersClock())


def fail(guard: LoginGuard, attempt: Attempt) -> None:
    """Fail once."""
    assert not guard.attempt(attempt, lambda: False)


def demand_refused(guard: LoginGuard, attempt: Attempt) -> None:
    """Demand that nothing is verified."""
    refused(Reason.REASON_QUOTA_EXCEEDED, partial(guard.attempt, attempt, lambda: True))


def elsewhere(number: int) -> str:
    """Return one of many addresses."""
    return f"10.1.{number // 256}.{number % 256}"


def test_failures_elsewhere_do_not_lock_a_user_out(guard: LoginGuard) -> None:
    """Five failures from one address bind that address; the user logs in from another."""
    for _ in range(limits.LOGIN_FAILURES_PER_MINUTE_MAX):
        fail(guard, Attempt(elsewhere(1), "root", 0))
    demand_refused(guard, Attempt(elsewhere(1), "root", 0))
    assert guard.attempt(ROOT, lambda: True)


@pytest.mark.parametrize("user_id", [0, None])
def test_name_is_limited_over_all_addresses(guard: LoginGuard, user_id: int | None) -> None:
    """Guesses from many addresses have a limit together, for known and unknown names alike."""
    for number in range(limits.LOGIN_FAILURES_PER_NAME_MAX):
        fail(guard, Attempt(elsewhere(number), "root", user_id))
    demand_refused(guard, Attempt(elsewhere(9999), "root", user_id))


def test_who_logged_in_lately_is_not_bound_by_others(guard: LoginGuard) -> None:
    """Neither guesses of the name everywhere nor those from the address keep a recent user out."""
    assert guard.attempt(ROOT, lambda: True)
    for number in range(limits.LOGIN_FAILURES_PER_NAME_MAX):
        fail(guard, Attempt(elsewhere(number), "root", 0))
    for number in range(limits.LOGIN_FAILURES_PER_ADDRESS_MAX):
        fail(guard, Attempt(HOME, f"invented {number}", None))
    demand_refused(guard, Attempt(HOME, "somebody else", 7))
    assert guard.attempt(ROOT, lambda: True)


def test_trust_has_an_end(guard: LoginGuard) -> None:
    """A login of long ago, or from elsewhere, gives nothing."""
    clock = UsersClock()
    guard = LoginGuard(clock)
    assert guard.attempt(ROOT, lambda: True)
    assert guard.is_trusted(ROOT)
    assert not guard.is_trusted(Attempt(elsewhere(1), "root", 0))
    clock.now_us += limits.LOGIN_REMEMBERED_US
    assert not guard.is_trusted(ROOT)


def test_invented_names_bind_their_address_alone(guard: LoginGuard) -> None:
    """A caller who invents names is throttled at that address, and nobody elsewhere is."""
    for number in range(limits.LOGIN_FAILURES_PER_ADDRESS_MAX):
        fail(guard, Attempt(HOME, f"invented {number}", None))
    demand_refused(guard, Attempt(HOME, "another", None))
    fail(guard, Attempt(elsewhere(1), "another", None))


def test_remembered_logins_are_bounded(guard: LoginGuard, monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest login is forgotten where there is no room for another."""
    monkeypatch.setattr(limits, "LOGINS_REMEMBERED_MAX", 2)
    attempts = [Attempt(elsewhere(number), "root", 0) for number in range(3)]
    for attempt in attempts:
        assert guard.attempt(attempt, lambda: True)
    assert [guard.is_trusted(attempt) for attempt in attempts] == [False, True, True]
