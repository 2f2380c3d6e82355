"""The members of one client show life at the same moments."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.viewstamp.client.group_cluster import GroupCluster, until
from viewstamp.client.groups import Groups
from viewstamp.client.lease import Pulse

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


async def test_all_members_of_a_client_have_its_pulse(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two memberships of one client ask the same pulse for their next moment; others do not."""
    asked: list[Pulse] = []

    class Asked(Pulse):
        def pause_s(self, now_s: float, interval_s: float) -> float:
            asked.append(self)
            return interval_s

    monkeypatch.setattr("viewstamp.client.groups.Pulse", Asked)
    cluster = GroupCluster()
    group = ("s", "t", "readers")
    ours, theirs = Groups(cluster.client()), Groups(cluster.client())
    async with ours.member(*group), ours.member(*group), theirs.member(*group):
        await until(lambda: len(set(asked)) == 2 and len(asked) >= 3)
