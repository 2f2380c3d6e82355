"""The domain's section: canonical encodings of its entities, both ways.

Kinds: 1 groups (key: stream id, topic id, group id), 2 members (key: group id, session id),
3 counters (empty key), 4 chores (key: kind, both ids), 5 watermarks (key: topic id, row), 6 offsets
(key: group id, row), 7 marks (`services.consumer_groups.mark_entities`). Ids and numbers of rows
are 8 bytes big-endian. The encoding of an entity is its proto's, fields in ascending order, as
golden bytes in the tests pin it. Indexes are not part of it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from google.protobuf.message import Message

from services.consumer_groups import mark_entities
from services.consumer_groups.assignment import waiting_of
from services.consumer_groups.assignors import ASSIGNORS
from services.consumer_groups.chores import KINDS_OF_CHORES
from services.consumer_groups.membership import is_assign_pending
from services.consumer_groups.model import (
    NEXT_GROUP_ID,
    Chore,
    CommittedOffsets,
    Group,
    GroupsState,
    Member,
)
from services.runtime import offset_rows, watermarks
from services.runtime.section import (
    EntityKind,
    Projected,
    Section,
    SectionError,
)
from viewstamp.api.consumer_groups.v1 import consumer_groups_pb2 as entities_pb2
from viewstamp.limits import OFFSET_MAX, PARTITIONS_PER_OFFSETS_ROW
from viewstamp.machine.freezing import WHOLE_TABLE_KEY

SECTION_VERSION: Final = 1
GROUP_KIND: Final = 1
MEMBER_KIND: Final = 2
COUNTERS_KIND: Final = 3
# Version 1 has them as well: usually there are none, and then its bytes are the same.
CHORE_KIND: Final = 4
OFFSETS_KIND: Final = 6
MARKS_KIND: Final = 7

_OFFSETS_KEY = struct.Struct(">QQ")
_GROUP_KEY = struct.Struct(">QQQ")
_MEMBER_KEY = struct.Struct(">QQ")
_CHORE_KEY = struct.Struct(">QQQ")


def encode_group(group: Group) -> bytes:
    """Return the canonical bytes of a group."""
    return _encode(entities_pb2.ConsumerGroupEntity(**group._asdict()))


def encode_member(member: Member) -> bytes:
    """Return the canonical bytes of a member."""
    return _encode(
        entities_pb2.MemberEntity(
            group_id=member.group_id,
            session_id=member.session_id,
            user_id=member.user_id,
            instance_id=member.instance_id,
            rack=member.rack,
            member_epoch=member.member_epoch,
            previous_member_epoch=member.previous_member_epoch,
            owned_partitions=member.owned,
            revoking_partitions=member.revoking,
            target_partitions=member.target,
            revocation_deadline=member.revocation_deadline,
            joined_revision=member.joined_revision,
            absence_deadline=member.absence_deadline,
            assignment_revision=member.assignment_revision,
            member_timeout_ms=member.member_timeout_ms,
        )
    )


def encode_chore(chore: Chore) -> bytes:
    """Return the canonical bytes of a chore."""
    return _encode(entities_pb2.ChoreEntity(**chore._asdict()))


def encode_offsets(row: CommittedOffsets) -> bytes:
    """Return the canonical bytes of a row of committed offsets."""
    return _encode(
        entities_pb2.CommittedOffsetsEntity(
            group_id=row.group_id,
            first_partition=offset_rows.first_partition(row.number),
            offsets_plus_one=offset_rows.unpack(row.offsets),
        )
    )


def decode_group(canonical: bytes) -> Group:
    """Return the group of canonical bytes. Raises DecodeError."""
    entity = entities_pb2.ConsumerGroupEntity.FromString(canonical)
    return Group._make(getattr(entity, name) for name in Group._fields)


def decode_member(canonical: bytes) -> Member:
    """Return the member of canonical bytes. Raises DecodeError."""
    entity = entities_pb2.MemberEntity.FromString(canonical)
    return Member(
        group_id=entity.group_id,
        session_id=entity.session_id,
        user_id=entity.user_id,
        instance_id=entity.instance_id,
        rack=entity.rack,
        member_epoch=entity.member_epoch,
        previous_member_epoch=entity.previous_member_epoch,
        owned=tuple(entity.owned_partitions),
        revoking=tuple(entity.revoking_partitions),
        target=tuple(entity.target_partitions),
        revocation_deadline=entity.revocation_deadline,
        joined_revision=entity.joined_revision,
        absence_deadline=entity.absence_deadline,
        assignment_revision=entity.assignment_revision,
        member_timeout_ms=entity.member_timeout_ms,
    )


def encode_counters(counters: Mapping[str, int]) -> bytes:
    """Return the canonical bytes of the counters."""
    return _encode(entities_pb2.ConsumerGroupsCountersEntity(next_group_id=counters[NEXT_GROUP_ID]))


def _encode(message: Message) -> bytes:
    return message.SerializeToString(deterministic=True)


def _group_order(group_id: int, group: Group) -> tuple[int, int, int]:
    return group.stream_id, group.topic_id, group_id


def _load_group(state: GroupsState, canonical: bytes) -> Projected:
    group = decode_group(canonical)
    if group.id in state.groups:
        raise SectionError(f"group {group.id} is there twice")
    if (group.stream_id, group.topic_id, group.name) in state.names:
        raise SectionError(f"group {group.id} has the name {group.name!r} of another on its topic")
    if group.assignor not in ASSIGNORS:
        raise SectionError(f"group {group.id} has the unknown assignor {group.assignor}")
    state.insert_group(group)
    return _GROUP_KEY.pack(*_group_order(group.id, group)), encode_group(group)


def _load_member(state: GroupsState, canonical: bytes) -> Projected:
    member = decode_member(canonical)
    place = f"member {member.session_id} of group {member.group_id}"
    if member.group_id not in state.groups:
        raise SectionError(f"{place} has no group")
    if (member.group_id, member.session_id) in state.members:
        raise SectionError(f"{place} is there twice")
    if member.instance_id and (member.group_id, member.instance_id) in state.instances:
        raise SectionError(f"{place} has the instance id {member.instance_id!r} of another")
    if bool(member.revoking) != bool(member.revocation_deadline):
        raise SectionError(f"{place} has a revocation without a deadline, or the reverse")
    if member.is_away and (member.revoking or not member.instance_id):
        raise SectionError(f"{place} is away, and has no instance id or partitions to give up")
    state.insert_member(member)
    return _MEMBER_KEY.pack(member.group_id, member.session_id), encode_member(member)


def _load_counters(state: GroupsState, canonical: bytes) -> Projected:
    entity = entities_pb2.ConsumerGroupsCountersEntity.FromString(canonical)
    state.counters.put(NEXT_GROUP_ID, entity.next_group_id)
    return WHOLE_TABLE_KEY, encode_counters(state.counters.rows)


def _load_chore(state: GroupsState, canonical: bytes) -> Projected:
    entity = entities_pb2.ChoreEntity.FromString(canonical)
    chore = Chore._make(getattr(entity, name) for name in Chore._fields)
    if chore.kind not in KINDS_OF_CHORES:
        raise SectionError(
            f"a chore at revision {chore.revision} has the unknown kind {chore.kind}"
        )
    if chore.key in state.chores:
        raise SectionError(f"the chore {chore.key} is there twice")
    state.chores.put(chore.key, chore)
    return _CHORE_KEY.pack(*chore.key), encode_chore(chore)


def _check_whole(state: GroupsState) -> Iterator[None]:
    """Raise SectionError if entities contradict each other; then compute who waits."""
    if any(group_id >= state.next_group_id() for group_id in state.groups.sorted_keys()):
        raise SectionError(f"the next group id {state.next_group_id()} is in use already")
    with_offsets = {group_id for group_id, _ in state.offsets.rows}
    yield
    yield from mark_entities.check(state)
    for group_id in state.groups.sorted_keys():
        members = state.members_of(group_id)
        group = state.groups.rows[group_id]
        _check_group(group, members)
        _check_retention(group, members, group_id in with_offsets)
        state.set_waiting(group_id, waiting_of(members))
        yield


def _offsets_key(row: CommittedOffsets) -> bytes:
    return _OFFSETS_KEY.pack(row.group_id, offset_rows.first_partition(row.number))


def _load_offsets(state: GroupsState, canonical: bytes) -> Projected:
    entity = entities_pb2.CommittedOffsetsEntity.FromString(canonical)
    number, _ = offset_rows.place(entity.first_partition)
    offsets = entity.offsets_plus_one
    is_whole = 0 < len(offsets) <= PARTITIONS_PER_OFFSETS_ROW
    if not is_whole or max(offsets) > OFFSET_MAX + 1:
        raise SectionError(
            f"group {entity.group_id} has too many offsets in row {number}, none, or one beyond the"
            " highest"
        )
    group = state.groups.rows.get(entity.group_id)
    if group is None or entity.first_partition + len(offsets) > group.partitions_count:
        raise SectionError(f"there are offsets of group {entity.group_id} in partitions it lacks")
    row = CommittedOffsets(entity.group_id, number, offset_rows.pack(offsets))
    state.offsets.put((row.group_id, number), row)
    return _offsets_key(row), encode_offsets(row)


def _check_group(group: Group, members: list[Member]) -> None:
    """Raise SectionError unless each partition has at most one holder and one target."""
    if not members and is_assign_pending(group):
        raise SectionError(f"group {group.id} has no members, and yet waits for a target")
    held = bytearray(group.partitions_count)
    aimed = bytearray(group.partitions_count)
    for member in members:
        _mark(member, member.owned, held)
        _mark(member, member.revoking, held)
        _mark(member, member.target, aimed)


def _check_retention(group: Group, members: list[Member], has_offsets: bool) -> None:
    """Raise SectionError unless the offsets of a group end exactly if nobody uses it."""
    may_end = group.offsets_retention_ms > 0 and not members
    if group.idle_since and not (may_end and group.expiry_due):
        raise SectionError(f"group {group.id} is idle, and its offsets are not to end")
    if may_end and not group.idle_since and has_offsets:
        raise SectionError(f"group {group.id} has offsets that are to end, and nothing ends them")


def _mark(member: Member, partitions: Sequence[int], marks: bytearray) -> None:
    if list(partitions) != sorted(partitions):
        raise SectionError(
            f"member {member.session_id} of group {member.group_id} has partitions out of order"
        )
    for partition in partitions:
        if partition >= len(marks) or marks[partition]:
            raise SectionError(
                f"member {member.session_id} of group {member.group_id} has partition {partition}, "
                "which the topic lacks or which is counted twice"
            )
        marks[partition] = 1


SECTION: Final[Section[GroupsState]] = Section(
    version=SECTION_VERSION,
    kinds=(
        EntityKind(
            GROUP_KIND,
            table=lambda state: state.groups,
            encode=encode_group,
            load=_load_group,
            encode_key=lambda group_id, group: _GROUP_KEY.pack(*_group_order(group_id, group)),
            order=_group_order,
        ),
        EntityKind(
            MEMBER_KIND,
            table=lambda state: state.members,
            encode=encode_member,
            load=_load_member,
            encode_key=lambda key, member: _MEMBER_KEY.pack(*key),
        ),
        EntityKind(
            COUNTERS_KIND,
            table=lambda state: state.counters,
            encode=encode_counters,
            load=_load_counters,
            whole_table=True,
        ),
        EntityKind(
            CHORE_KIND,
            table=lambda state: state.chores,
            encode=encode_chore,
            load=_load_chore,
            encode_key=lambda key, chore: _CHORE_KEY.pack(*key),
        ),
        watermarks.entity_kind(lambda state: state.watermarks),
        EntityKind(
            OFFSETS_KIND,
            table=lambda state: state.offsets,
            encode=encode_offsets,
            load=_load_offsets,
            encode_key=lambda key, row: _offsets_key(row),
        ),
        EntityKind(
            MARKS_KIND,
            table=lambda state: state.marks,
            encode=mark_entities.encode_marks,
            load=mark_entities.load_marks,
            encode_key=lambda key, row: mark_entities.marks_key(row),
        ),
    ),
    check=_check_whole,
    projections={watermarks.PROJECTION: lambda state: watermarks.projected(state.watermarks)},
)
