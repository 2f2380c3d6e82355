"""The members of one client show life at the same moments."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.services.consumer_groups.harness import GROUP_NAME
from tests.viewstamp.client.group_cluster import GroupCluster, change_of, until
from viewstamp import limits
from viewstamp.client.groups import Groups
from viewstamp.client.pulse import Pulse

TIMES_S = st.integers(0, 10**6).map(lambda each: each / 64)  # exact as floats


@given(TIMES_S, TIMES_S, TIMES_S, st.integers(1, 4_000).map(lambda each: each / 64))
def test_moments_are_common(begin_s: float, one_s: float, two_s: float, interval_s: float) -> None:
    """The next moment is within an interval, and the same one for whoever asks before it."""
    pulse = Pulse()
    assert pulse.pause_s(begin_s, interval_s) == interval_s
    first_s, later_s = sorted((begin_s + one_s, begin_s + two_s))
    next_s = first_s + pulse.pause_s(first_s, interval_s)
    assert first_s < next_s <= first_s + interval_s
    assert (next_s - begin_s) % interval_s == 0
    if later_s < next_s:
        assert later_s + pulse.pause_s(later_s, interval_s) == next_s


def test_a_notice_concerns_the_members_of_its_group() -> None:
    """Whoever follows a group is woken for it, and for no other, until it leaves."""
    pulse, woken = Pulse(), []
    wakes = [lambda name=name: woken.append(name) for name in "abc"]
    for group_id, wake in zip((1, 1, 2), wakes, strict=True):
        pulse.follow(group_id, wake)
    pulse.noticed([1, 77])
    pulse.leave(1, wakes[0])
    pulse.leave(77, wakes[1])
    pulse.noticed([1, 2])
    assert woken == ["a", "b", "b", "c"]
    pulse.leave(1, wakes[1])
    pulse.noticed([1])
    assert len(woken) == 4


async def test_members_of_one_client_share_its_pulse() -> None:
    """All memberships of a client ask the same pulse for their next moment."""

    class Asked(Pulse):
        count = 0

        def pause_s(self, now_s: float, interval_s: float) -> float:
            self.count += 1
            return interval_s

    cluster, pulse = GroupCluster(), Asked()
    groups, group = Groups(cluster.client(), pulse), ("s", "t", GROUP_NAME)
    async with groups.member(*group), groups.member(*group):
        await until(lambda: pulse.count == 2)


async def test_a_notice_is_heard_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A member that shows life once an hour learns of a change when its group has a notice."""
    for name in ("MEMBER_HEARTBEAT_MS", "MEMBER_UNSETTLED_HEARTBEAT_MS"):
        monkeypatch.setattr(limits, name, 3_600_000)
    cluster, pulse = GroupCluster(), Pulse()
    client = cluster.client()
    async with Groups(client, pulse).member("s", "t", GROUP_NAME) as one:
        assert (await change_of(one)).assigned == (0, 1, 2, 3)
        for _ in range(20):
            await asyncio.sleep(0)  # until it has nothing to tell any more
        cluster.harness.noticed.clear()
        cluster.harness.join(99)
        cluster.harness.propose_all()
        assert cluster.harness.noticed == [(client.session, 1), (99, 1)]
        pulse.noticed([1])
        assert (await change_of(one)).revoked == (2, 3)
