"""Watches end when their replica is removed, and not before."""

from __future__ import annotations

from coordinator.base.roster import Roster
from coordinator.gateway.last_watches import end_with_membership
from viewstamp.errors import Refusal


class EndedFeed:
    """Notes why it ended."""

    def __init__(self) -> None:
        self.refusals: list[Refusal] = []

    def end_all(self, refusal: Refusal) -> None:
        """Note it."""
        self.refusals.append(refusal)


def test_watches_end_with_the_membership_of_their_replica() -> None:
    """A replica without a vote shows changes as before; one that was removed sends all away."""
    feed, roster = EndedFeed(), Roster.founding(0, 2)
    end_with_membership(feed, roster)
    roster.enter((1,), (0,), 1)
    assert feed.refusals == []
    roster.enter((1,), (), 2)
    assert [each.name for each in feed.refusals] == ["VIEW_CHANGE"]
