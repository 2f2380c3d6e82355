"""What the domain knows: immutable values in tables, and the indexes over them."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from services.runtime.tables import Table, UndoLog
from viewstamp.api.consumer_groups.v1.consumer_groups_pb2 import CHORE_KIND_PARTITIONS

FIRST_GROUP_ID: Final = 1
# Epoch 0 is what a client sends that forgot to name one, so no group ever has it.
FIRST_GROUP_EPOCH: Final = 1
# The only key of the counters table.
NEXT_GROUP_ID: Final = "next_group_id"


class Group(NamedTuple):
    """A group itself; its members are rows of their own."""

    id: int
    stream_id: int
    topic_id: int
    name: str
    assignor: int  # consumer_groups_pb2.Assignor, never UNSPECIFIED
    group_epoch: int
    assignment_epoch: int
    partitions_count: int
    created_at: int  # microseconds since 1970
    created_revision: int
    # Creation and changes of the partitions; members come and go without a change to the group.
    modified_revision: int


class Member(NamedTuple):
    """A session's place in a group. Partitions are ascending; owned and revoking are disjoint."""

    group_id: int
    session_id: int
    user_id: int
    instance_id: str  # empty for none
    rack: str  # empty if unknown
    member_epoch: int
    previous_member_epoch: int  # the last epoch that the member itself has named
    owned: tuple[int, ...]
    revoking: tuple[int, ...]
    target: tuple[int, ...]
    revocation_deadline: int  # log time in microseconds; 0 exactly if nothing is being revoked
    joined_revision: int  # of the place: a session that takes it over keeps it


class Chore(NamedTuple):
    """What an effect left to do: see `services.consumer_groups.chores`."""

    kind: int  # consumer_groups_pb2.ChoreKind
    first_id: int
    second_id: int
    revision: int  # of the last effect
    # Of changed partitions alone.
    lowest_count: int = 0
    partitions_count: int = 0
    changes: int = 0
    done_group_id: int = 0  # those up to it have heard, in this round
    has_next_round: bool = False  # since they have not heard of the last effect

    @property
    def key(self) -> ChoreKey:
        """What the chore is about: there is one of each at a time."""
        return self.kind, self.first_id, self.second_id


ChoreKey = tuple[int, int, int]


class GroupsState:
    """All tables of the domain. Rows of `groups`, `members`, `counters`, `chores` are the section.

    What a chore is about may be outdated: whoever reads partitions asks `kept_partitions`.
    """

    __slots__ = (
        "undo", "groups", "members", "counters", "names", "topic_groups", "group_members",
        "instances", "session_groups", "user_sessions", "waiting", "chores",
    )  # fmt: skip

    def __init__(self, undo: UndoLog) -> None:
        self.undo = undo
        self.groups: Table[int, Group] = Table(undo)
        self.members: Table[tuple[int, int], Member] = Table(undo)  # (group id, session id)
        self.counters: Table[str, int] = Table(undo)
        self.chores: Table[ChoreKey, Chore] = Table(undo)
        # Indexes. Whatever is below follows from the rows above.
        self.names: Table[tuple[int, int, str], int] = Table(undo)  # (stream, topic, name)
        self.topic_groups: Table[tuple[int, int], Table[int, None]] = Table(undo)
        self.group_members: Table[int, Table[int, None]] = Table(undo)  # sessions
        self.instances: Table[tuple[int, str], int] = Table(undo)  # (group id, instance id)
        self.session_groups: Table[int, Table[int, None]] = Table(undo)
        # User -> session -> in how many groups.
        self.user_sessions: Table[int, Table[int, int]] = Table(undo)
        # Group id -> partition -> the session that waits for another to release it. The mapping
        # itself never changes between two targets, so an entry may be outdated: whoever reads one
        # asks the member's target.
        self.waiting: Table[int, Mapping[int, int]] = Table(undo)

    def next_group_id(self) -> int:
        """Return the id that the next group gets."""
        return self.counters.rows.get(NEXT_GROUP_ID, FIRST_GROUP_ID)

    def insert_group(self, group: Group) -> None:
        """Add a group without members."""
        topic = (group.stream_id, group.topic_id)
        self.groups.put(group.id, group)
        self.names.put((*topic, group.name), group.id)
        groups = self.topic_groups.rows.get(topic)
        if groups is None:
            groups = Table(self.undo)
            self.topic_groups.put(topic, groups)
        groups.put(group.id, None)

    def remove_group(self, group: Group) -> None:
        """Remove a group with its members."""
        for member in self.members_of(group.id):
            self.remove_member(member)
        topic = (group.stream_id, group.topic_id)
        self.groups.delete(group.id)
        self.names.delete((*topic, group.name))
        groups = self.topic_groups.rows[topic]
        groups.delete(group.id)
        if not groups:
            self.topic_groups.delete(topic)

    def member(self, group_id: int, session_id: int) -> Member | None:
        """Return the session's place in the group, or None."""
        return self.members.rows.get((group_id, session_id))

    def put_member(self, member: Member) -> None:
        """Replace the row of a member whose indexed fields stay as they are."""
        self.members.put((member.group_id, member.session_id), member)

    def members_count(self, group_id: int) -> int:
        """Return how many members the group has."""
        sessions = self.group_members.rows.get(group_id)
        return 0 if sessions is None else len(sessions)

    def members_of(self, group_id: int) -> list[Member]:
        """Return the members of a group by ascending session id."""
        sessions = self.group_members.rows.get(group_id)
        if sessions is None:
            return []
        rows = self.members.rows
        return [rows[group_id, session_id] for session_id in sessions.sorted_keys()]

    def sessions_of_user(self, user_id: int) -> list[int]:
        """Return the sessions in which a user has places, ascending."""
        sessions = self.user_sessions.rows.get(user_id)
        return [] if sessions is None else list(sessions.sorted_keys())

    def insert_member(self, member: Member) -> None:
        """Add a place."""
        group_id, session_id, user_id = member.group_id, member.session_id, member.user_id
        self.members.put((group_id, session_id), member)
        sessions = self.group_members.rows.get(group_id)
        if sessions is None:
            sessions = Table(self.undo)
            self.group_members.put(group_id, sessions)
        sessions.put(session_id, None)
        if member.instance_id:
            self.instances.put((group_id, member.instance_id), session_id)
        self._index_session(session_id, group_id)
        self._count_place(user_id, session_id)

    def remove_member(self, member: Member) -> None:
        """Remove a place. What it held is free; nobody is given it here."""
        group_id, session_id, user_id = member.group_id, member.session_id, member.user_id
        self.members.delete((group_id, session_id))
        sessions = self.group_members.rows[group_id]
        sessions.delete(session_id)
        if not sessions:
            self.group_members.delete(group_id)
            self.set_waiting(group_id, {})
        if member.instance_id:
            self.instances.delete((group_id, member.instance_id))
        _unindex(self.session_groups, session_id, group_id)
        places = self.user_sessions.rows[user_id]
        count = places.rows[session_id]
        if count > 1:
            places.put(session_id, count - 1)
        else:
            _unindex(self.user_sessions, user_id, session_id)

    def _index_session(self, session_id: int, group_id: int) -> None:
        groups = self.session_groups.rows.get(session_id)
        if groups is None:
            groups = self.session_groups.nested()
            self.session_groups.put(session_id, groups)
        groups.put(group_id, None)

    def _count_place(self, user_id: int, session_id: int) -> None:
        """Count one more place, so that the last one is known without looking at the others."""
        places = self.user_sessions.rows.get(user_id)
        if places is None:
            places = Table(self.undo)
            self.user_sessions.put(user_id, places)
        places.put(session_id, places.rows.get(session_id, 0) + 1)

    def kept_partitions(self, stream_id: int, topic_id: int, partitions_count: int) -> int:
        """Return how many of a topic's partitions its groups may show: those never deleted.

        `partitions_count` is what the topic has now, which its groups may not have heard of yet.
        """
        chore = self.chores.rows.get((CHORE_KIND_PARTITIONS, stream_id, topic_id))
        return partitions_count if chore is None else min(partitions_count, chore.lowest_count)

    def set_waiting(self, group_id: int, waiting: Mapping[int, int]) -> None:
        """Replace what the members of a group wait for; the mapping must not change afterwards."""
        if waiting:
            self.waiting.put(group_id, waiting)
        elif group_id in self.waiting:
            self.waiting.delete(group_id)


def contains(ascending: Sequence[int], number: int) -> bool:
    """Return whether the number is among the ascending ones."""
    position = bisect_left(ascending, number)
    return position < len(ascending) and ascending[position] == number


def _unindex(table: Table[int, Table[int, Any]], key: int, number: int) -> None:
    """Take a number from those of a key; a key without numbers has no row."""
    numbers = table.rows[key]
    numbers.delete(number)
    if not numbers:
        table.delete(key)
