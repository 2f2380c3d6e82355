"""The state of the domain: immutable values in tables, and the indexes over them."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from services.consumer_groups.marks import MarksTable
from services.runtime import offset_rows
from services.runtime.liveness import Liveness
from services.runtime.offset_rows import EMPTY
from services.runtime.watermarks import WatermarksTable
from viewstamp.api.consumer_groups.v1.consumer_groups_pb2 import CHORE_KIND_PARTITIONS
from viewstamp.limits import MEMBER_TIMEOUT_US
from viewstamp.machine.tables import Table, TableIndex, UndoLog

FIRST_GROUP_ID: Final = 1
US_PER_MS: Final = 1_000
# Clients that forget to name an epoch send 0, so no group ever has it.
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
    # Creation, updates and changes of the partitions; members come and go without a change to the
    # group.
    modified_revision: int
    member_timeout_ms: int = 0  # 0 for the default, as in all groups of lower feature levels
    offsets_retention_ms: int = 0  # while there are no members; 0 for ever
    # Log time in microseconds since when there have been neither members nor commits; 0 if offsets
    # need not end.
    idle_since: int = 0
    expiry_due: int = 0  # log time of the ExpireOffsets that was proposed; 0 for none
    # Of the last command that changed offsets; 0 below FEATURE_LEVEL_GUARDS.
    offsets_revision: int = 0

    @property
    def timeout_ms(self) -> int:
        """How long members that join now may be silent."""
        return self.member_timeout_ms or MEMBER_TIMEOUT_US // US_PER_MS


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
    # Log time in microseconds until which the place is kept while nobody has it; 0 if somebody has.
    absence_deadline: int = 0
    # Of the last change of what is owned or revoking; 0 below FEATURE_LEVEL_MEMBERS.
    assignment_revision: int = 0
    # Its group's when it joined: who does not know of another one stops reading in time.
    member_timeout_ms: int = 0

    @property
    def key(self) -> MemberKey:
        """Where it is in the table."""
        return self.group_id, self.session_id

    @property
    def timeout_ms(self) -> int:
        """How long it may be silent."""
        return self.member_timeout_ms or MEMBER_TIMEOUT_US // US_PER_MS

    @property
    def is_away(self) -> bool:
        """Whether a static member has left its place for a while, and reads nothing."""
        return self.absence_deadline > 0


class CommittedOffsets(NamedTuple):
    """A row of the offsets of a group (`services.runtime.offset_rows`), each plus one."""

    group_id: int
    number: int  # of the row
    offsets: bytes


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
        """The subject of the chore: there is one chore per subject."""
        return self.kind, self.first_id, self.second_id


ChoreKey = tuple[int, int, int]
MemberKey = tuple[int, int]  # group id, session id


class GroupsState:
    """All tables of the domain. Those before the indexes are the section.

    Rows with a pending chore may be outdated: readers of partitions ask `kept_partitions`.
    """

    __slots__ = (
        "groups", "members", "counters", "chores", "watermarks", "offsets", "marks", "names",
        "topic_groups", "group_members", "instances", "session_groups", "user_sessions", "waiting",
        "liveness",
        "notices",
    )  # fmt: skip

    def __init__(self, undo: UndoLog) -> None:
        self.groups: Table[int, Group] = Table(undo)
        self.members: Table[tuple[int, int], Member] = Table(undo)  # (group id, session id)
        self.counters: Table[str, int] = Table(undo)
        self.chores: Table[ChoreKey, Chore] = Table(undo)
        self.watermarks: WatermarksTable = Table(undo)  # equal to those of streams
        self.offsets: Table[tuple[int, int], CommittedOffsets] = Table(undo)  # (group, row number)
        self.marks: MarksTable = Table(undo)
        # Indexes: everything below is derived from the rows above.
        self.names: Table[tuple[int, int, str], int] = Table(undo)  # (stream, topic, name)
        self.topic_groups: TableIndex[tuple[int, int], int] = TableIndex(undo)
        self.group_members: TableIndex[int, int] = TableIndex(undo)  # sessions
        self.instances: Table[tuple[int, str], int] = Table(undo)  # (group id, instance id)
        self.session_groups: TableIndex[int, int] = TableIndex(undo)
        # User -> session -> in how many groups.
        self.user_sessions: TableIndex[int, int] = TableIndex(undo)
        # Group id -> partition -> the session that waits for another to release it. The mapping
        # itself never changes between two targets, so an entry may be outdated: readers check the
        # member's target.
        self.waiting: Table[int, Mapping[int, int]] = Table(undo)
        # No part of what replicas agree on.
        self.liveness: Liveness[MemberKey, Member] = Liveness((0, 0))
        self.notices: dict[MemberKey, None] = {}  # members that have something to hear

    def next_group_id(self) -> int:
        """Return the id that the next group gets."""
        return self.counters.rows.get(NEXT_GROUP_ID, FIRST_GROUP_ID)

    def insert_group(self, group: Group) -> None:
        """Add a group without members."""
        topic = (group.stream_id, group.topic_id)
        self.groups.put(group.id, group)
        self.names.put((*topic, group.name), group.id)
        self.topic_groups.add(topic, group.id)

    def remove_group(self, group: Group) -> None:
        """Remove a group with its members."""
        for member in self.members_of(group.id):
            self.remove_member(member)
        self.drop_offsets(group)
        topic = (group.stream_id, group.topic_id)
        self.groups.delete(group.id)
        self.names.delete((*topic, group.name))
        self.topic_groups.take(topic, group.id)

    def offset_rows_max(self, group: Group) -> int:
        """Return how many rows of offsets a group may have."""
        return offset_rows.row_count(group.partitions_count)

    def offset_rows_count(self, group: Group) -> int:
        """Return how many rows of offsets a group has."""
        numbers = range(self.offset_rows_max(group))
        return sum((group.id, number) in self.offsets for number in numbers)

    def replace_offsets(self, group_id: int, number: int, changes: Mapping[int, int]) -> bool:
        """Replace offsets of a row, each plus one; 0 forgets it. Return whether one differed."""
        row = self.offsets.rows.get((group_id, number))
        before = EMPTY if row is None else row.offsets
        return self.set_offsets(group_id, number, offset_rows.replaced(before, changes))

    def set_offsets(self, group_id: int, number: int, offsets: bytes) -> bool:
        """Replace a row of offsets, each plus one; one without any is not kept.

        Return whether it differed from the row before; else nothing is done.
        """
        key, row = (group_id, number), CommittedOffsets(group_id, number, offsets)
        if offsets and self.offsets.rows.get(key) != row:
            self.offsets.put(key, row)
        elif not offsets and key in self.offsets:
            self.offsets.delete(key)
        else:
            return False
        return True

    def cut_offsets(self, group: Group, partitions_count: int) -> bool:
        """Forget the offsets of a group in all but its first partitions; return whether it had any.

        It costs a look at `cut_rows`.
        """
        number, kept = offset_rows.place(partitions_count)
        row = self.offsets.rows.get((group.id, number)) if kept else None
        is_cut = row is not None and self.set_offsets(
            group.id, number, offset_rows.cut(row.offsets, kept)
        )
        for row_number in range(number + bool(kept), self.offset_rows_max(group)):
            if (group.id, row_number) in self.offsets:
                self.offsets.delete((group.id, row_number))
                is_cut = True
        return is_cut

    def cut_rows(self, group: Group, partitions_count: int) -> int:
        """Return at how many rows `cut_offsets` looks."""
        return self.offset_rows_max(group) - offset_rows.place(partitions_count)[0]

    def drop_offsets(self, group: Group) -> bool:
        """Forget all offsets of a group; return whether it had any."""
        # There are none below FEATURE_LEVEL_OFFSETS, where nobody pays for a look.
        return bool(self.offsets.rows) and self.cut_offsets(group, 0)

    def member(self, group_id: int, session_id: int) -> Member | None:
        """Return the session's place in the group, or None."""
        return self.members.rows.get((group_id, session_id))

    def put_member(self, member: Member) -> None:
        """Replace the row of a member whose indexed fields stay as they are."""
        key = (member.group_id, member.session_id)
        before = self.members.rows.get(key)
        if before is not None and before.assignment_revision != member.assignment_revision:
            self.notices[key] = None
        self.members.put(key, member)

    def members_count(self, group_id: int) -> int:
        """Return how many members the group has."""
        sessions = self.group_members.rows.get(group_id)
        return 0 if sessions is None else len(sessions)

    def members_of(self, group_id: int) -> list[Member]:
        """Return the members of a group by ascending session id."""
        rows = self.members.rows
        return [rows[group_id, session_id] for session_id in self.group_members.of(group_id)]

    def sessions_of_user(self, user_id: int) -> list[int]:
        """Return the sessions in which a user has places, ascending."""
        return list(self.user_sessions.of(user_id))

    def insert_member(self, member: Member) -> None:
        """Add a place."""
        group_id, session_id, user_id = member.group_id, member.session_id, member.user_id
        self.members.put((group_id, session_id), member)
        self.group_members.add(group_id, session_id)
        if member.instance_id:
            self.instances.put((group_id, member.instance_id), session_id)
        if not member.is_away:
            self._add_to_session(group_id, session_id, user_id)

    def remove_member(self, member: Member) -> None:
        """Remove a place and free its partitions, without giving them to anybody."""
        group_id, session_id = member.group_id, member.session_id
        self.members.delete((group_id, session_id))
        self.liveness.forget(member)
        self.notices[group_id, session_id] = None
        self.group_members.take(group_id, session_id)
        if group_id not in self.group_members:
            self.set_waiting(group_id, {})
        if member.instance_id:
            self.instances.delete((group_id, member.instance_id))
        if not member.is_away:
            self._take_from_session(group_id, session_id, member.user_id)

    def leave_place(self, member: Member) -> None:
        """Replace the row of a member that is away from now on: no session has its place."""
        self.put_member(member)
        self._take_from_session(member.group_id, member.session_id, member.user_id)

    def _add_to_session(self, group_id: int, session_id: int, user_id: int) -> None:
        self.session_groups.add(session_id, group_id)
        # Counted, so that the last one is known without a look at the others.
        places = self.user_sessions.rows.get(user_id)
        count = 0 if places is None else places.rows.get(session_id, 0)
        self.user_sessions.add(user_id, session_id, count + 1)

    def _take_from_session(self, group_id: int, session_id: int, user_id: int) -> None:
        self.session_groups.take(session_id, group_id)
        places = self.user_sessions.rows[user_id]
        count = places.rows[session_id]
        if count > 1:
            places.put(session_id, count - 1)
        else:
            self.user_sessions.take(user_id, session_id)

    def kept_partitions(self, stream_id: int, topic_id: int, partitions_count: int) -> int:
        """Return how many of a topic's partitions its groups may show: those never deleted.

        `partitions_count` is the topic's present number, which its groups may not know yet.
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
