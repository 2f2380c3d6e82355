"""Write quotas: a user who sent too much waits for it."""

from __future__ import annotations

import pytest

from coordinator.app.config import parse
from coordinator.base.errors import ConfigError
from coordinator.gateway.quotas import QuotaConfig, Quotas
from tests.coordinator.gateway.test_admission import AdmissionTrial
from viewstamp import limits
from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.errors import Refusal
from viewstamp.routing import SERVICE_NAMES

FLOOD, HONEST = 7, 8


def delay_ms(quotas: Quotas, user_id: int) -> int:
    """Return what a user is told to wait; 0: nothing."""
    try:
        quotas.check(user_id)
    except Refusal as refusal:
        assert refusal.reason == Reason.REASON_QUOTA_EXCEEDED
        return int(refusal.details["retry_delay_ms"])
    return 0


def charge(quotas: Quotas, user_id: int, commands: int, size: int) -> None:
    """Send so much."""
    quotas.charge(quotas.check(user_id), commands, size)


@pytest.mark.parametrize(
    ("config", "each"),
    [
        (QuotaConfig(10, 0, 0, 0, 1_000), (1, 10_000)),
        (QuotaConfig(0, 10, 0, 0, 1_000), (10_000, 1)),
    ],
)
def test_a_user_gets_the_rate_and_no_more(config: QuotaConfig, each: tuple[int, int]) -> None:
    """A user gets a burst, then what time brings; the announced delay is enough, and no more."""
    now_ms = 0
    quotas = Quotas(config, lambda: now_ms)
    sent = []
    while now_ms < 10_000:
        wait_ms = delay_ms(quotas, FLOOD)
        if not wait_ms:
            charge(quotas, FLOOD, *each)
            sent.append(now_ms)
        now_ms += wait_ms
    assert sent.count(0) == 10
    assert 105 <= len(sent) <= 111
    assert delay_ms(quotas, HONEST) == 0


def test_a_large_request_is_paid_for_later() -> None:
    """More than a burst gets through at once; the following commands wait until it is paid for."""
    now_ms = 0
    quotas = Quotas(QuotaConfig(10, 0, 0, 0, 1_000), lambda: now_ms)
    charge(quotas, FLOOD, 8_190, 0)
    assert delay_ms(quotas, FLOOD) == 818_001
    now_ms = 818_001
    assert delay_ms(quotas, FLOOD) == 0


def test_all_together_have_a_quota() -> None:
    """All users share a quota, so one user's commands leave less for the others."""
    quotas = Quotas(QuotaConfig(0, 0, 10, 0, 1_000), lambda: 0)
    charge(quotas, FLOOD, 10, 1)
    with pytest.raises(Refusal) as caught:
        quotas.check(HONEST)
    assert caught.value.details["whose"] == "cluster"


def test_users_are_forgotten_at_last(monkeypatch: pytest.MonkeyPatch) -> None:
    """State is bounded, and a user who keeps sending stays in debt."""
    monkeypatch.setattr(limits, "QUOTA_USERS_MAX", 10)
    now_ms = 0
    quotas = Quotas(QuotaConfig(1, 0, 0, 0, 1_000), lambda: now_ms)
    for user_id in range(1_000):
        now_ms += 1
        if not delay_ms(quotas, FLOOD):
            charge(quotas, FLOOD, 10, 1)
        charge(quotas, user_id + 100, 1, 1)
    assert len(quotas) == 10
    assert delay_ms(quotas, FLOOD) > 0


async def test_a_request_is_charged_once() -> None:
    """A retry of a request under way costs nothing; beyond the quota a number stays free."""
    world = AdmissionTrial(QuotaConfig(1, 0, 0, 0, 1_000))
    for _ in range(5):
        await world.admit(1)
    with pytest.raises(Refusal) as caught:
        await world.admit(2)
    assert caught.value.reason == Reason.REASON_QUOTA_EXCEEDED
    world.now_ms += int(caught.value.details["retry_delay_ms"])
    await world.admit(2)
    assert [request.logged.number for request in world.logged] == [1, 2]


def test_flags() -> None:
    """Each rate has a flag, which takes no negative value."""
    services = [f"--service={name}=unix:/x" for name in SERVICE_NAMES]
    common = ["--data-directory=/d", *services]
    assert parse(common).quotas == QuotaConfig()
    flags = ["--quota-commands-per-user=1", "--quota-bytes-per-user=2", "--quota-commands=3"]
    flags += ["--quota-bytes=4", "--quota-burst-ms=5"]
    assert parse([*common, *flags]).quotas == QuotaConfig(1, 2, 3, 4, 5)
    for flag in ("--quota-commands=-1", "--quota-burst-ms=0"):
        with pytest.raises(ConfigError, match="--quota-"):
            parse([*common, flag])
