"""The section: golden bytes, round trips, and unloadable content."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from services.consumer_groups.model import CommittedOffsets, Group, GroupsState, Member
from services.consumer_groups.section import (
    COUNTERS_KIND,
    GROUP_KIND,
    MEMBER_KIND,
    OFFSETS_KIND,
    SECTION,
    decode_group,
    decode_member,
    encode_group,
    encode_member,
    encode_offsets,
)
from services.runtime import offset_rows, watermarks
from services.runtime.section import SectionError
from services.runtime.watermarks import Watermarks
from testkit.frozen import changes_of
from tests.services.consumer_groups.harness import GroupsHarness, settled
from tests.services.consumer_groups.offset_requests import commit_as, report
from viewstamp.api.consumer_groups.v1 import consumer_groups_pb2 as views
from viewstamp.api.streams.v1.streams_pb2 import WatermarksEntity
from viewstamp.format.digest import StateDigest
from viewstamp.limits import OFFSET_MAX
from viewstamp.machine.freezing import Entity
from viewstamp.machine.tables import UndoLog

GROUP = Group(
    id=3,
    stream_id=7,
    topic_id=9,
    name="readers",
    assignor=views.ASSIGNOR_UNIFORM,
    group_epoch=5,
    assignment_epoch=4,
    partitions_count=300,
    created_at=1_700_000_000_000_000,
    created_revision=101,
    modified_revision=120,
)
MEMBER = Member(
    group_id=3,
    session_id=77,
    user_id=2,
    instance_id="one",
    rack="r",
    member_epoch=4,
    previous_member_epoch=3,
    owned=(0, 1, 299),
    revoking=(2,),
    target=(0, 1, 4, 299),
    revocation_deadline=1_700_000_030_000_000,
    joined_revision=110,
)
GROUP_BYTES = "08031007180922077265616465727328013005380440ac02488080f9c0c1c4820350655878"
MEMBER_BYTES = (
    "0803104d180222036f6e652a01723004380342040001ab024a01025205000104ab02588087a0cfc1c48203606e"
)


# Fields of feature level 4, at the end of what was there before.
GROUP_OF_MEMBERS = GROUP._replace(member_timeout_ms=6_000)
MEMBER_AWAY = MEMBER._replace(
    revoking=(),
    revocation_deadline=0,
    absence_deadline=1_700_000_045_000_000,
    assignment_revision=130,
    member_timeout_ms=6_000,
)
GROUP_OF_MEMBERS_BYTES = GROUP_BYTES + "60f02e"
MEMBER_AWAY_BYTES = (
    "0803104d180222036f6e652a01723004380342040001ab025205000104ab02606e"
    "68c0cab3d6c1c4820370820178f02e"
)

# Rows of feature level 5: from partition 256 on, offsets 0, 300 and the highest, others unknown.
OFFSETS = CommittedOffsets(3, 2, offset_rows.pack([0, 1, 301, 0, OFFSET_MAX + 1]))
MARKS = Watermarks(
    7, 9, 2, starts=offset_rows.pack([0, 200]), ends=offset_rows.pack([1, 300, 0, OFFSET_MAX])
)
OFFSETS_BYTES = "08031080021a0f0001ad020080808080808080808001"
MARKS_BYTES = "08071009188002220300c8012a0d01ac0200ffffffffffffffff7f"


def test_golden_bytes() -> None:
    """The canonical encodings are pinned: digests of all replicas and builds depend on them."""
    assert encode_group(GROUP).hex() == GROUP_BYTES
    assert encode_member(MEMBER).hex() == MEMBER_BYTES
    assert encode_group(GROUP_OF_MEMBERS).hex() == GROUP_OF_MEMBERS_BYTES
    assert encode_member(MEMBER_AWAY).hex() == MEMBER_AWAY_BYTES
    assert encode_offsets(OFFSETS).hex() == OFFSETS_BYTES
    assert watermarks.encode(MARKS).hex() == MARKS_BYTES


def test_golden_rows_of_offsets_load() -> None:
    """The pinned bytes are rows again, under keys of their owner and the number of the row."""
    state = load(
        UndoLog(),
        _section(
            (watermarks.KIND, _key(9, 256), bytes.fromhex(MARKS_BYTES)),
            (OFFSETS_KIND, _key(3, 256), bytes.fromhex(OFFSETS_BYTES)),
        ),
    )
    assert state.watermarks.rows == {(9, 2): MARKS}
    assert state.offsets.rows == {(3, 2): OFFSETS}


def test_entities_decode_to_what_they_were() -> None:
    """No field is lost on the way through the encoding."""
    for group in (GROUP, GROUP_OF_MEMBERS):
        assert decode_group(encode_group(group)) == group
    for member in (MEMBER, MEMBER_AWAY):
        assert decode_member(encode_member(member)) == member


def load(undo: UndoLog, section: list[Entity]) -> GroupsState:
    """Return a state of these entities."""
    state = GroupsState(undo)
    SECTION.load(state, section)
    undo.settle()
    return state


def busy() -> GroupsHarness:
    """Return a harness in the middle of everything: waiting, revoking, pending, static and away.

    It has offsets and watermarks, too.
    """
    harness = settled([11], partitions_count=4)
    harness.join(12, "two")
    harness.propose_all()
    harness.create("second")
    harness.create("elsewhere", topic=2)
    harness.join(11, name="second", user=4)
    harness.join(13, "three", name="second")
    harness.leave(13, name="second", keep_place=True)
    harness.update(member_timeout_ms=6_000)
    commit_as(harness, 11, {0: 5})
    report(harness, {0: 9, 3: 7})
    return harness


def test_entities_are_ordered_by_kind_and_key() -> None:
    """The section is written in ascending order of kind and key, counters included."""
    section = list(SECTION.entities(busy().state))
    assert section == sorted(section)
    assert [kind for kind, _, _ in section] == [1, 1, 1, 2, 2, 2, 2, 3, 5, 6]
    assert section[0][1] == bytes(7) + b"\x07" + bytes(7) + b"\x02" + bytes(7) + b"\x03"
    assert section[3][1] == bytes(7) + b"\x01" + bytes(7) + b"\x0b"
    assert section[-3] == (COUNTERS_KIND, b"", b"\x08\x04")


def test_delta_is_in_the_order_of_topics() -> None:
    """A delta has the order of the section, in which groups stand under their topics."""
    harness = busy()
    harness.machine.freezer.freeze(1, harness.revision)
    frozen = harness.machine.freezer.frozen
    assert frozen is not None
    changes = [(kind, key, new) for kind, key, old, new in changes_of(frozen) if old is None]
    assert changes == list(SECTION.entities(harness.state))


def test_empty_state_has_no_entity() -> None:
    """Before the first group the section is empty, and an empty section loads as an empty state."""
    assert list(SECTION.entities(GroupsHarness().state)) == []
    assert list(SECTION.entities(load(UndoLog(), []))) == []


def test_reloaded_machine_goes_on_alike() -> None:
    """After a reload in the middle of a handover, the same commands lead to the same digest."""
    first, second = busy(), busy()
    second.machine.undo.settle()
    second.machine.state = load(second.machine.undo, list(SECTION.entities(first.state)))
    assert second.machine.undo.entries == []
    for harness in (first, second):
        commit_as(harness, 11, {3: 7})
        harness.truthful(11)
        harness.leave(12, keep_place=True)
        harness.join(22, "two")
        harness.settle()
        assert harness.propose_next() is False
        harness.now = harness.member(13, "second").absence_deadline
        harness.propose_all()
    assert first.digest() == second.digest()


def _section(*changes: Entity) -> list[Entity]:
    """Return a section of one group with one member, with entities replaced or added."""
    section: dict[tuple[int, bytes], bytes] = {
        (GROUP_KIND, _key(7, 9, 3)): encode_group(GROUP),
        (MEMBER_KIND, _key(3, 77)): encode_member(MEMBER),
        (COUNTERS_KIND, b""): b"\x08\x04",
    }
    section.update({(kind, key): canonical for kind, key, canonical in changes})
    return [(kind, key, section[kind, key]) for kind, key in sorted(section)]


def _key(*numbers: int) -> bytes:
    return b"".join(number.to_bytes(8, "big") for number in numbers)


def _group(**changes: object) -> Entity:
    group = GROUP._replace(**changes)  # type: ignore[arg-type]
    return GROUP_KIND, _key(group.stream_id, group.topic_id, group.id), encode_group(group)


def _member(**changes: object) -> Entity:
    member = MEMBER._replace(**changes)  # type: ignore[arg-type]
    return MEMBER_KIND, _key(member.group_id, member.session_id), encode_member(member)


def _offsets(
    plus_one: list[int], *, group_id: int = 3, first: int = 256, key: bytes | None = None
) -> Entity:
    """Return the entity of committed offsets, each plus one."""
    entity = views.CommittedOffsetsEntity(
        group_id=group_id, first_partition=first, offsets_plus_one=plus_one
    )
    right = _key(group_id, first)
    return OFFSETS_KIND, right if key is None else key, entity.SerializeToString(deterministic=True)


def _marks(
    starts: list[int], ends: list[int], *, first: int = 256, key: bytes | None = None
) -> Entity:
    """Return the entity of watermarks of the group's topic."""
    entity = WatermarksEntity(
        stream_id=7,
        topic_id=9,
        first_partition=first,
        start_offsets=starts,
        end_offsets_plus_one=ends,
    )
    right = _key(9, first)
    canonical = entity.SerializeToString(deterministic=True)
    return watermarks.KIND, right if key is None else key, canonical


DAMAGE: dict[str, tuple[Callable[[], list[Entity]], str]] = {
    "unknown kind": (lambda: [*_section(), (8, b"", b"")], "kind 8 is unknown"),
    "broken bytes": (
        lambda: _section((GROUP_KIND, _key(7, 9, 3), b"\xff")),
        "not a protobuf message",
    ),
    "group key": (
        lambda: [(GROUP_KIND, b"x", encode_group(GROUP)), *_section()[1:]],
        "wrong key",
    ),
    "group twice": (lambda: [_group(), *_section()], "there twice"),
    "name taken": (lambda: _section(_group(id=2)), "name 'readers' of another"),
    "assignor": (lambda: _section(_group(assignor=0)), "unknown assignor 0"),
    "empty and pending": (
        lambda: _section(_group(id=2, name="b")),
        "group 2 has no members, and yet waits",
    ),
    "member key": (
        lambda: [_section()[0], (MEMBER_KIND, b"x", encode_member(MEMBER)), _section()[2]],
        "wrong key",
    ),
    "member without group": (lambda: _section(_member(group_id=2)), "has no group"),
    "member twice": (lambda: [_group(), _member(), _member()], "there twice"),
    "instance twice": (
        lambda: _section(_member(session_id=78)),
        "has the instance id 'one' of another",
    ),
    "no deadline": (lambda: _section(_member(revocation_deadline=0)), "without a deadline"),
    "deadline alone": (lambda: _section(_member(revoking=())), "without a deadline"),
    "away without instance": (
        lambda: _section(
            _member(instance_id="", revoking=(), revocation_deadline=0, absence_deadline=1)
        ),
        "is away, and has no instance id or partitions to give up",
    ),
    "away and revoking": (
        lambda: _section(_member(absence_deadline=1)),
        "is away, and has no instance id or partitions to give up",
    ),
    "two holders": (
        lambda: _section(_member(session_id=78, instance_id="", target=())),
        "partition 0",
    ),
    "owned and revoking": (lambda: _section(_member(revoking=(1,))), "partition 1"),
    "two targets": (
        lambda: _section(
            _member(session_id=78, instance_id="", owned=(), revoking=(), revocation_deadline=0)
        ),
        "partition 0",
    ),
    "no such partition": (lambda: _section(_member(target=(300,))), "partition 300"),
    "order": (lambda: _section(_member(target=(1, 0))), "out of order"),
    "counter key": (lambda: [*_section()[:2], (COUNTERS_KIND, b"x", b"\x08\x04")], "wrong key"),
    "counters twice": (
        lambda: [*_section(), (COUNTERS_KIND, b"", b"\x08\x04")],
        "there twice",
    ),
    "no counters": (lambda: _section()[:-1], "next group id 1 is in use"),
    "used id": (lambda: _section((COUNTERS_KIND, b"", b"\x08\x03")), "3 is in use"),
    "marks that begin behind their end": (lambda: _section(_marks([3], [2])), "end before they"),
    "marks without ends": (lambda: _section(_marks([], [])), "too many or none"),
    "more starts than ends": (lambda: _section(_marks([0, 0], [1])), "too many or none"),
    "too many marks": (lambda: _section(_marks([], [1] * 129)), "too many or none"),
    "marks with a zero at the end": (lambda: _section(_marks([], [1, 0])), "not canonical"),
    "marks amid a row": (lambda: _section(_marks([], [1], first=257)), "not canonical"),
    "marks key": (lambda: _section(_marks([], [1], key=_key(9, 1))), "wrong key"),
    "offsets of no group": (
        lambda: _section(_offsets([1], group_id=2)),
        "offsets of group 2 in partitions it lacks",
    ),
    "offsets beyond the last partition": (
        lambda: _section(_offsets([1] * 45)),
        "offsets of group 3 in partitions it lacks",
    ),
    "no offsets": (lambda: _section(_offsets([])), "too many offsets in row 2, none"),
    "too many offsets": (
        lambda: _section(_offsets([1] * 129, first=0)),
        "too many offsets in row 0, none",
    ),
    "offsets with a zero at the end": (lambda: _section(_offsets([1, 0])), "not canonical"),
    "offsets that are all unknown": (lambda: _section(_offsets([0])), "not canonical"),
    "offsets amid a row": (lambda: _section(_offsets([1], first=257)), "not canonical"),
    "offsets key": (lambda: _section(_offsets([1], key=_key(3, 2))), "wrong key"),
    "impossible offset": (lambda: _section(_offsets([OFFSET_MAX + 2])), "beyond the highest"),
    "impossible end": (
        lambda: [_marks([1], [OFFSET_MAX + 2], first=0)],
        "beyond the highest offset",
    ),
    "offsets twice": (lambda: [*_section(_offsets([1])), _offsets([1])], "there twice"),
}


@pytest.mark.parametrize("added", [[], [_marks([1], [2] * 128, first=0), _offsets([1] * 44)]])
def test_undamaged_section_loads(added: list[Entity]) -> None:
    """The section that the tests below damage is sound, and its digest survives the load."""
    digests = []
    sound = _section(*added)
    for section in (sound, list(SECTION.entities(load(UndoLog(), sound)))):
        digest = StateDigest()
        for entity in section:
            digest.add(*entity)
        digests.append(digest)
    assert digests[0] == digests[1]


@pytest.mark.parametrize("damage", DAMAGE)
def test_damaged_section_is_refused(damage: str) -> None:
    """Entities that the machine cannot have written are named, not taken in."""
    section, message = DAMAGE[damage]
    with pytest.raises(SectionError, match=message):
        load(UndoLog(), section())
