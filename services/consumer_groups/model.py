"""What the domain knows: immutable values in tables, and the indexes over them."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from services.runtime.tables import Table, UndoLog

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


class State:
    """All tables of the domain. Rows of `groups`, `members` and `counters` are the section."""

    __slots__ = (
        "undo", "groups", "members", "counters", "names", "topic_groups", "group_members",
        "instances", "session_groups", "user_sessions", "waiting",
    )  # fmt: skip

    def __init__(self, undo: UndoLog) -> None:
        self.undo = undo
        self.groups: Table[int, Group] = Table(undo)
        self.members: Table[tuple[int, int], Member] = Table(undo)  # (group id, session id)
        self.counters: Table[str, int] = Table(undo)
        # Indexes. Whatever is below follows from the rows above.
        self.names: Table[tuple[int, int, str], int] = Table(undo)  # (stream, topic, name)
        self.topic_groups: Table[tuple[int, int], Table[int, None]] = Table(undo)
        self.group_members: Table[int, Table[int, None]] = Table(undo)  # sessions
        self.instances: Table[tuple[int, str], int] = Table(undo)  # (group id, instance id)
        self.session_groups: Table[int, tuple[int, ...]] = Table(undo)
        self.user_sessions: Table[int, tuple[int, ...]] = Table(undo)
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

    def groups_of(self, stream_id: int, topic_id: int) -> list[Group]:
        """Return the groups of a topic by ascending id."""
        ids = self.topic_groups.rows.get((stream_id, topic_id))
        if ids is None:
            return []
        return [self.groups.rows[group_id] for group_id in ids.sorted_keys()]

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

    def members_of_session(self, session_id: int) -> list[Member]:
        """Return the places of a session by ascending group id."""
        group_ids = self.session_groups.rows.get(session_id, ())
        return [self.members.rows[group_id, session_id] for group_id in group_ids]

    def members_of_user(self, user_id: int) -> list[Member]:
        """Return the places of a user's sessions by ascending session and group id."""
        return [
            member
            for session_id in self.user_sessions.rows.get(user_id, ())
            for member in self.members_of_session(session_id)
            if member.user_id == user_id
        ]

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
        _index(self.session_groups, session_id, group_id)
        _index(self.user_sessions, user_id, session_id)

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
        if not self._has_places(user_id, session_id):
            _unindex(self.user_sessions, user_id, session_id)

    def _has_places(self, user_id: int, session_id: int) -> bool:
        """Return whether the user is a member of any group in this session."""
        group_ids = self.session_groups.rows.get(session_id, ())
        rows = self.members.rows
        return any(rows[group_id, session_id].user_id == user_id for group_id in group_ids)

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


def _index(table: Table[int, tuple[int, ...]], key: int, number: int) -> None:
    """Add a number to the ascending ones of a key."""
    numbers = table.rows.get(key)
    if numbers is None:
        table.put(key, (number,))
        return
    position = bisect_left(numbers, number)
    if position == len(numbers):
        table.put(key, (*numbers, number))
    elif numbers[position] != number:
        table.put(key, (*numbers[:position], number, *numbers[position:]))


def _unindex(table: Table[int, tuple[int, ...]], key: int, number: int) -> None:
    """Take a number from the ascending ones of a key; a key without numbers has no row."""
    numbers = table.rows[key]
    position = bisect_left(numbers, number)
    left = numbers[:position] + numbers[position + 1 :]
    if left:
        table.put(key, left)
    else:
        table.delete(key)
