"""Which members have shown life lately: soft state, in no section and no digest.

Heartbeats are no commands as long as they change nothing. The service of the primary notes them
here, and tells the primary which members were silent for too long; their removal is a command. A
new primary knows of no heartbeat, so each member is given its full time anew.

Time is what the primary has counted since it leads (`Tenure`), as of its last check. It is up to
one interval old when a heartbeat is noted, so a member has one interval more than its timeout.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from viewstamp.limits import MEMBER_CHECK_INTERVAL_MS, MEMBERS_CHECKED_MAX, MEMBERS_EXPIRED_MAX

if TYPE_CHECKING:
    from services.consumer_groups.model import GroupsState, Member
    from viewstamp.api.domain.v1.domain_service_pb2 import Tenure

MemberKey = tuple[int, int]  # group id, session id
_BEFORE_ALL: Final = (0, 0)


class Liveness:
    """When each member was heard last, and how far the present round over all members has come."""

    __slots__ = ("_elapsed_ms", "_heard_ms", "_leaving", "_place", "_tenure")

    def __init__(self) -> None:
        self._tenure = 0
        self._elapsed_ms = 0
        self._heard_ms: dict[MemberKey, int] = {}
        # Those whose removal was proposed, with the revisions of their joins.
        self._leaving: dict[MemberKey, int] = {}
        self._place: MemberKey = _BEFORE_ALL

    @property
    def count(self) -> int:
        """Of how many members it knows when they were heard, or that they leave."""
        return len(self._heard_ms.keys() | self._leaving.keys())

    def heard(self, member: Member) -> None:
        """Note that a member has shown life, if a check has seen it, and none proposed its removal.

        Of others the next check gives it the full time anyway. So there is never more than one time
        for each member, whatever is taken back of commands.
        """
        key = _key(member)
        if key in self._heard_ms and not self.is_leaving(member):
            self._heard_ms[key] = self._elapsed_ms

    def is_leaving(self, member: Member) -> bool:
        """Whether the removal of a member was proposed: others may own its partitions soon."""
        return self._leaving.get(_key(member)) == member.joined_revision

    def forget(self, member: Member) -> None:
        """Forget when a member that is gone was heard. The next check forgets that it leaves."""
        self._heard_ms.pop(_key(member), None)

    def silent(self, state: GroupsState, tenure: Tenure) -> Iterator[Member]:
        """Yield members that were silent for longer than their groups allow, some at a time.

        Each call goes on where the last one ended, so that a step costs a bounded time.
        """
        self._count(tenure)
        self._drop_gone(state)
        found = 0
        keys = state.members.keys_after(self._place, MEMBERS_CHECKED_MAX)
        for key in keys:
            if found == MEMBERS_EXPIRED_MAX:
                return
            self._place = key
            member = state.members.rows[key]
            if not member.is_away and self.is_silent(member):
                found += 1
                self._leaving[key] = member.joined_revision
                yield member
        if len(keys) < MEMBERS_CHECKED_MAX:
            self._place = _BEFORE_ALL

    def is_silent(self, member: Member) -> bool:
        """Whether a member has shown no life for its timeout."""
        # A member of which nothing is known is given its full time from now on.
        heard_ms = self._heard_ms.setdefault(_key(member), self._elapsed_ms)
        return self._elapsed_ms - heard_ms >= member.timeout_ms + MEMBER_CHECK_INTERVAL_MS

    def _count(self, tenure: Tenure) -> None:
        if tenure.number != self._tenure or tenure.elapsed_ms < self._elapsed_ms:
            self._tenure = tenure.number
            self._heard_ms.clear()
            self._leaving.clear()
        self._elapsed_ms = tenure.elapsed_ms

    def _drop_gone(self, state: GroupsState) -> None:
        present = ((key, state.members.rows.get(key)) for key in self._leaving)
        left = [member for _, member in present if member is not None and self.is_leaving(member)]
        self._leaving = {_key(member): member.joined_revision for member in left}


def _key(member: Member) -> MemberKey:
    return member.group_id, member.session_id
