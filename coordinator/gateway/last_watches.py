"""The watches of a replica end with its membership: nothing changes here any more, and its clients
would take that for a cluster at rest until the feed has missed its next confirmation."""

from __future__ import annotations

from typing import Final, Protocol

from coordinator.base.roster import Roster
from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.errors import Refusal

_REMOVED: Final = "this replica was removed from the cluster: watch elsewhere"


class FollowedFeed(Protocol):
    """The feed that all watches follow."""

    def end_all(self, refusal: Refusal) -> None:
        """Have everybody who follows it end with a refusal."""
        ...


def end_with_membership(feed: FollowedFeed, roster: Roster) -> None:
    """End all watches when an epoch begins to which this replica does not belong."""

    def entered() -> None:
        if roster.replica_id not in roster.members:
            feed.end_all(Refusal(Reason.REASON_VIEW_CHANGE, _REMOVED))

    roster.follow(entered)
