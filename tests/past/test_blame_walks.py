"""Who changed an entity: what a walk through the log finds, against what the log says."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import pytest

from coordinator.history.messages import FoundChange, SoughtEntity, WalkEntries
from coordinator.mux.stage import Stage
from past import blame
from past.blame import walked
from past.state import PastState
from testkit.composite.model import METHODS
from testkit.logged_requests import decode_requests
from tests.past.past_histories import history, sealed
from viewstamp.api.brokers.v1 import brokers_pb2
from viewstamp.api.consumer_groups.v1 import consumer_groups_pb2
from viewstamp.api.streams.v1 import streams_pb2
from viewstamp.api.users.v1 import users_pb2
from viewstamp.api.watch.v1.watch_service_pb2 import (
    CHANGE_KIND_CREATED,
    CHANGE_KIND_DELETED,
)
from viewstamp.format.prepare import SealedPrepare
from viewstamp.limits import SYSTEM_USER_ID

ROOM = 10_000
ALL_GROUPS = SoughtEntity(
    int(Stage.CONSUMER_GROUPS),
    consumer_groups_pb2.ConsumerGroup.DESCRIPTOR.full_name,
    frozenset(range(40)),
)
KINDS: tuple[tuple[Stage, Any, set[str]], ...] = (
    (Stage.USERS, users_pb2.User, {"Found", "CreateUser", "UpdateUser", "DeleteUser",
     "UpdatePermissions", "ChangePassword", "DeleteStream", "DeleteTopic"}),
    (Stage.STREAMS, streams_pb2.Stream, {"CreateStream", "UpdateStream", "PurgeStream",
     "DeleteStream"}),
    (Stage.STREAMS, brokers_pb2.Broker, {"RegisterBroker", "ResignBroker", "UpdateBroker",
     "UnregisterBroker", "FenceBroker"}),
)  # fmt: skip


def walk(entries: list[SealedPrepare], sought: SoughtEntity, **options: int) -> list[FoundChange]:
    """Return all changes of an entity, page by page."""
    found: list[FoundChange] = []
    from_revision = options.get("from_revision", 1)
    state, left, ids = PastState(), list(entries), sought.ids
    while left:
        sought = replace(sought, ids=ids)
        page = walked(state, WalkEntries(left, sought, from_revision, options.get("room", ROOM)))
        found += page.found
        ids = page.ids
        left = [entry for entry in entries if entry.op > page.place.op]
        if page.next_revision:
            state, left, from_revision = PastState(), list(entries), page.next_revision
    return found


def command_at(entries: list[SealedPrepare], revision: int) -> tuple[int, int, int]:
    """Return code, user and session of a command, from the entries as the mux takes them."""
    commands = {
        entry.first_revision + place: (span.code, span.user_id, request.session_id)
        for entry in entries
        for place, (request, span) in enumerate(
            (request, span)
            for request in decode_requests(entry.body)
            for span in request.spans
            for _ in range(span.count)
        )
    }
    return commands[revision]


@pytest.mark.parametrize(("stage", "message", "methods"), KINDS)
def test_changes_follow_each_other(stage: Stage, message: Any, methods: set[str]) -> None:
    """Each change begins with what the one before it led to, and is of a command that could."""
    entries = sealed(history(Random(1), 10))
    full_name = message.DESCRIPTOR.full_name
    checked = 0
    for entity_id in range(6):
        before = b""
        sought = SoughtEntity(int(stage), full_name, frozenset({entity_id}))
        for found in walk(entries, sought):
            change = found.change
            assert change.before == before
            assert (change.kind == CHANGE_KIND_CREATED) == (not before)
            assert (change.kind == CHANGE_KIND_DELETED) == (not change.after)
            code, user_id, session_id = command_at(entries, change.revision)
            assert (found.code, change.session_id) == (code, session_id)
            assert change.is_internal == (user_id == SYSTEM_USER_ID)
            assert change.is_internal or change.user_id == user_id
            name = "Transact" if code == 10 else METHODS[code].name
            assert name in methods | {"Transact"}
            before = change.after
            checked += 1
    assert checked or stage == Stage.STREAMS


def deleted_streams(entries: list[SealedPrepare]) -> set[str]:
    """Return the last names of the streams that a history deletes, found by their ids."""
    full_name = streams_pb2.Stream.DESCRIPTOR.full_name
    return {
        streams_pb2.Stream.FromString(found.change.before).name
        for entity_id in range(1, 10)
        for found in walk(
            entries, SoughtEntity(int(Stage.STREAMS), full_name, frozenset({entity_id}))
        )
        if found.change.kind == CHANGE_KIND_DELETED
    }


@pytest.mark.long
def test_an_entity_that_is_gone_is_found_by_its_name() -> None:
    """A name finds every entity that bore it, each to its end."""
    histories = (sealed(history(Random(seed), 10)) for seed in range(20))
    entries, names = next(
        (entries, names) for entries in histories if (names := deleted_streams(entries))
    )
    full_name = streams_pb2.Stream.DESCRIPTOR.full_name
    for name in names:
        sought = SoughtEntity(int(Stage.STREAMS), full_name, frozenset(), name)
        kinds = [found.change.kind for found in walk(entries, sought)]
        assert CHANGE_KIND_DELETED in kinds


def test_pages_have_every_change_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """However small pages are, together they have what one large page has."""
    entries = sealed(history(Random(0), 10))
    sought = SoughtEntity(
        int(Stage.USERS), users_pb2.User.DESCRIPTOR.full_name, frozenset(range(6)), ""
    )
    whole = walk(entries, sought)
    assert len(whole) > 3
    assert walk(entries, sought, room=1) == whole
    monkeypatch.setattr(blame, "BLAME_PAGE_BYTES_MAX", 1)
    assert walk(entries, sought) == whole
    later = whole[2].change.revision
    assert walk(entries, sought, from_revision=later) == [
        each for each in whole if each.change.revision >= later
    ]


def test_large_entities_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """A change of a large entity says who and when, without the entity."""
    monkeypatch.setattr(blame, "BLAME_ENTITY_BYTES_MAX", 1)
    entries = sealed(history(Random(0), 3))
    full_name = users_pb2.User.DESCRIPTOR.full_name
    found = walk(entries, SoughtEntity(int(Stage.USERS), full_name, frozenset({0})))
    assert found
    for each in found:
        assert (each.change.is_left_out, each.change.before, each.change.after) == (True, b"", b"")


def test_groups_are_found_in_their_topic() -> None:
    """A group is found in the stream and topic that it is in, and nowhere else."""
    entries = sealed(history(Random(2), 12))
    full_name = consumer_groups_pb2.ConsumerGroup.DESCRIPTOR.full_name
    stage = int(Stage.CONSUMER_GROUPS)
    found = walk(entries, SoughtEntity(stage, full_name, frozenset(range(1, 20))))
    assert found
    for stream_id in range(1, 4):
        of_stream = walk(
            entries, SoughtEntity(stage, full_name, frozenset(range(1, 20)), "", stream_id)
        )
        entities = (each.change.after or each.change.before for each in of_stream)
        assert {
            consumer_groups_pb2.ConsumerGroup.FromString(entity).stream_id for entity in entities
        } <= {stream_id}


def test_one_command_that_changes_many(monkeypatch: pytest.MonkeyPatch) -> None:
    """What one command did is told on one page; behind the page's bytes, without the entities."""
    entries = sealed(history(Random(2), 10))
    monkeypatch.setattr(blame, "BLAME_PAGE_BYTES_MAX", 1)
    changes: dict[int, list[bool]] = {}
    for found in walk(entries, ALL_GROUPS):
        changes.setdefault(found.change.revision, []).append(found.change.is_left_out)
    assert max(map(len, changes.values())) > 1
    for left_out in changes.values():
        assert left_out == [False, *[True] * (len(left_out) - 1)]
