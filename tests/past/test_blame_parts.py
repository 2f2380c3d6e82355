"""Who changed what belongs to an entity: members, tokens and placements, against a whole scan."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import replace
from functools import cache
from random import Random
from typing import Any, Final, NamedTuple

import pytest

from coordinator.history.messages import FoundChange, SoughtEntity
from coordinator.mux.stage import Stage
from past import blame
from past.state import PastState
from tests.past.past_histories import history, sealed
from tests.past.test_blame_walks import walk
from viewstamp.api.brokers.v1 import brokers_pb2
from viewstamp.api.consumer_groups.v1 import consumer_groups_pb2
from viewstamp.api.streams.v1 import streams_pb2
from viewstamp.api.users.v1 import users_pb2
from viewstamp.api.watch.v1.watch_service_pb2 import CHANGE_KIND_DELETED, Change
from viewstamp.format.prepare import SealedPrepare

ALL_BYTES: Final = 1 << 40
PREPARES: Final = 20
SEEDS_TRIED_MAX: Final = 40
# Ids of owners and partitions that are asked for: more than histories have.
IDS: Final = range(20)
NAMES_TRIED_MAX: Final = 4
PARTITIONS: Final = (0, 1, 500)


class PartKind(NamedTuple):
    """What belongs to what, where a change says whose it is, and the first seed to be tried."""

    stage: Stage
    entity: Any
    part: Any
    owner: str
    first_seed: int


KINDS: Final = {
    "members": PartKind(
        Stage.CONSUMER_GROUPS,
        consumer_groups_pb2.ConsumerGroup,
        consumer_groups_pb2.Member,
        "group_id",
        5,
    ),
    "tokens": PartKind(Stage.USERS, users_pb2.User, users_pb2.PersonalAccessToken, "user_id", 8),
    "placements": PartKind(Stage.STREAMS, streams_pb2.Topic, brokers_pb2.Placements, "topic_id", 1),
}
EACH_KIND: Final = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)


@cache
def entries_with(kind: PartKind, owners: int = 2) -> list[SealedPrepare]:
    """Return a history in which parts of several owners change, some in one command if it may."""
    for seed in range(kind.first_seed, kind.first_seed + SEEDS_TRIED_MAX):
        entries = sealed(history(Random(seed), PREPARES))
        found = [change for change, _ in all_changes(entries, kind.stage, kind.part)]
        if len({getattr(change, kind.owner) for change in found}) >= owners and len(found) > 3:
            return entries
    raise AssertionError("no history has such changes")


def all_changes(
    entries: list[SealedPrepare], stage: Stage, message: Any
) -> list[tuple[Change, bytes]]:
    """Return all changes of a type, and what was before."""
    state = PastState()
    state.forget_changes(ALL_BYTES)
    for entry in entries:
        state.apply(entry)
    return list(state.machines[stage].changes.told_with_old({message.DESCRIPTOR.full_name}))


def sought(kind: PartKind, *ids: int, name: str = "", partition: int | None = None) -> SoughtEntity:
    """Return what to seek."""
    return SoughtEntity(
        int(kind.stage),
        kind.entity.DESCRIPTOR.full_name,
        frozenset(ids),
        name,
        part_type=kind.part.DESCRIPTOR.full_name,
        partition=partition,
    )


def in_short(found: FoundChange) -> tuple[int, int, bytes, bytes]:
    """Return revision, kind, and the part before and after."""
    change = found.change
    return change.revision, change.kind, change.before, change.after


@EACH_KIND
def test_parts_are_those_of_their_owner(kind: PartKind) -> None:
    """Each owner has the changes that a scan of the whole log finds for it, and no others."""
    entries = entries_with(kind)
    expected: dict[int, list[tuple[int, int, bytes, bytes]]] = defaultdict(list)
    for change, before in all_changes(entries, kind.stage, kind.part):
        after = b"" if change.kind == CHANGE_KIND_DELETED else change.entity
        told = (change.revision, change.kind, before, after)
        expected[getattr(change, kind.owner)].append(told)
    assert len(expected) > 1, "the history has parts of several owners"
    for owner_id in (*expected, max(expected) + 1):
        found = walk(entries, sought(kind, owner_id))
        assert [in_short(each) for each in found] == expected[owner_id]
        assert {each.change.owner_id for each in found} <= {owner_id}


@EACH_KIND
def test_parts_of_a_name_are_those_of_all_that_had_it(kind: PartKind) -> None:
    """An owner that is gone is found by its name, from where it has the name on."""
    entries = entries_with(kind)
    names: dict[str, set[int]] = defaultdict(set)
    for change, before in all_changes(entries, kind.stage, kind.entity):
        for encoded in filter(None, (before, change.entity)):
            entity = kind.entity.FromString(encoded)
            names[getattr(entity, "name", "") or entity.username].add(entity.id)
    checked = 0
    for name, ids in list(names.items())[:NAMES_TRIED_MAX]:
        by_name = walk(entries, sought(kind, name=name))
        by_id = walk(entries, sought(kind, *ids))
        assert set(map(in_short, by_name)) <= set(map(in_short, by_id))
        checked += len(by_name)
    assert checked


@pytest.mark.parametrize(
    "kind", [KINDS["members"], KINDS["placements"]], ids=["members", "placements"]
)
def test_parts_are_in_what_their_owner_is_in(kind: PartKind) -> None:
    """An id that was of something in another stream or topic finds nothing, as for an entity."""
    entries = entries_with(kind)
    change = all_changes(entries, kind.stage, kind.part)[0][0]
    asked = sought(kind, getattr(change, kind.owner))
    if kind is KINDS["members"]:
        asked = replace(asked, topic_id=change.topic_id)
    assert walk(entries, replace(asked, stream_id=change.stream_id))
    assert not walk(entries, replace(asked, stream_id=change.stream_id + 1))
    if kind is KINDS["members"]:
        assert not walk(entries, replace(asked, topic_id=change.topic_id + 1))


def test_parts_that_end_with_their_owner_are_found_by_its_name() -> None:
    """Of a log that begins with the end of an owner, the ends of its parts are told by its name."""
    kind = KINDS["placements"]
    entries = entries_with(kind)
    ended = [
        change
        for change, _ in all_changes(entries, kind.stage, kind.entity)
        if change.kind == CHANGE_KIND_DELETED
    ]
    checked = 0
    for change in ended:
        topic = kind.entity.FromString(change.entity)
        by_id, by_name = (
            [
                in_short(each)
                for each in walk(entries, asked, from_revision=change.revision)
                if each.change.owner_id == topic.id
            ]
            for asked in (sought(kind, topic.id), sought(kind, name=topic.name))
        )
        assert by_name == by_id
        checked += len(by_id)
    assert checked, "some topic ended with its placements"


@EACH_KIND
def test_pages_of_parts_have_every_change_once(
    kind: PartKind, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However small pages are, together they have what one large page has, in order."""
    entries = entries_with(kind)
    everybody = sought(kind, *IDS)
    whole = [in_short(each) for each in walk(entries, everybody)]
    assert len(whole) > 3
    assert [revision for revision, *_ in whole] == sorted(revision for revision, *_ in whole)
    assert [in_short(each) for each in walk(entries, everybody, room=1)] == whole
    monkeypatch.setattr(blame, "BLAME_PAGE_BYTES_MAX", 1)
    small = walk(entries, everybody)
    assert [each.change.revision for each in small] == [revision for revision, *_ in whole]


def test_one_partition_is_told_alone() -> None:
    """Of a partition only the commands are told that changed its placement."""
    kind = KINDS["placements"]
    entries = entries_with(kind)
    changes = all_changes(entries, kind.stage, kind.part)
    told = 0
    for topic_id in {change.topic_id for change, _ in changes}:
        whole = walk(entries, sought(kind, topic_id))
        for partition in PARTITIONS:
            found = walk(entries, sought(kind, topic_id, partition=partition))
            expected = [
                each
                for each in whole
                if placement(each.change.before, partition)
                != placement(each.change.after, partition)
            ]
            assert found == expected
            told += len(found) < len(whole)
    assert told, "some command changed some partitions alone"


def placement(encoded: bytes, partition: int) -> bytes:
    """Return the placement of a partition in a row; empty for none."""
    for each in brokers_pb2.Placements.FromString(encoded).placements:
        if each.partition == partition:
            return each.SerializeToString()
    return b""


def test_no_command_fills_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of very many parts that one command changed some are told, and that there are more."""
    kind = KINDS["members"]
    entries = entries_with(kind)
    everybody = sought(kind, *IDS)
    by_revision = Counter(each.change.revision for each in walk(entries, everybody))
    assert max(by_revision.values()) > 2
    most = max(by_revision.values()) - 1
    monkeypatch.setattr(blame, "PARTS_TOLD_MAX", most)
    told: dict[int, list[bool]] = defaultdict(list)
    for found in walk(entries, everybody):
        told[found.change.revision].append(found.change.has_more)
    assert told.keys() == by_revision.keys()
    for revision, flags in told.items():
        count = min(by_revision[revision], most)
        assert flags == [False] * (count - 1) + [by_revision[revision] > most]


def test_entities_are_told_without_their_parts() -> None:
    """Who asks for an entity alone hears of no parts, and of no owner."""
    kind = KINDS["members"]
    entries = entries_with(kind)
    alone = replace(sought(kind, *IDS), part_type="")
    found = walk(entries, alone)
    assert {each.change.entity_type for each in found} == {kind.entity.DESCRIPTOR.full_name}
    assert {each.change.owner_id for each in found} == {0}
