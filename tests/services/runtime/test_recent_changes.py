"""The changes that a machine notes for watchers: which there are, and at which revision."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

import pytest

from services.runtime.domain import WatchedKind
from services.runtime.isolation import Isolation
from services.runtime.machine import Machine
from services.runtime.queries import ENDLESS
from services.runtime.spans import BULK_ITEMS_MIN
from tests.services.runtime import echo
from tests.services.runtime.changes_reading import changes_of, page_of
from tests.services.runtime.changes_script import (
    ScriptHarness,
    Told,
    script,
    tell,
    told_script,
)
from tests.services.runtime.echo import KEEP, PUT, REVERT, SAVEPOINT, batch, command, put_request
from tests.services.runtime.harness import MALFORMED
from tests.services.runtime.snapshot_trial import SnapshotTrial
from viewstamp.api.domain.v1 import domain_service_pb2 as pb
from viewstamp.api.routing.v1 import routing_pb2
from viewstamp.api.watch.v1 import watch_service_pb2 as watch_pb2


@pytest.fixture
def harness() -> ScriptHarness:
    """A fresh harness."""
    return ScriptHarness()


def all_told(harness: ScriptHarness) -> list[Told]:
    """Return all changes in few words."""
    return [tell(change) for change in changes_of(harness.machine)]


# What is there before, a script, and the changes that it makes.
SCRIPTS: Final[dict[str, tuple[str, str, list[tuple[str, str]]]]] = {
    "create": ("", "a=1", [("created", "a=1")]),
    "update": ("a=1", "a=2", [("updated", "a=2")]),
    "update without a difference": ("a=1", "a=1", [("updated", "a=1")]),
    "delete": ("a=1", "-a", [("deleted", "a=1")]),
    "put the same row": ("a=1", "a", []),
    "nothing": ("a=1", "", []),
    "create, then update": ("", "a=1 a=2", [("created", "a=2")]),
    "update twice": ("a=1", "a=2 a=3", [("updated", "a=3")]),
    "update, then delete": ("a=1", "a=2 -a", [("deleted", "a=1")]),
    "delete, then create": ("a=1", "-a a=2", [("updated", "a=2")]),
    "create, then delete": ("", "a=1 -a", []),
    "create, delete, create": ("", "a=1 -a a=2", [("created", "a=2")]),
    "several, in the order of the first touch": (
        "b=1",
        "c=1 b=2 a=1 c=2",
        [("created", "c=2"), ("updated", "b=2"), ("created", "a=1")],
    ),
    "one name in two tables": ("", "x=1 box:x=2", [("created", "x=1"), ("created", "box:x=2")]),
    "an item with its parent": (
        "",
        "box:b=full b.1=1",
        [("created", "box:b=full"), ("created", "b.1=1(full)")],
    ),
    "an item whose parent changes later": (
        "box:b=old",
        "b.1=1 box:b=new",
        [("created", "b.1=1(new)"), ("updated", "box:b=new")],
    ),
    "an item that goes with its parent": (
        "box:b=full b.1=1",
        "-b.1 -box:b",
        [("deleted", "b.1=1(full)"), ("deleted", "box:b=full")],
    ),
    "an item that goes behind its parent, which changed": (
        "box:b=old b.1=1",
        "box:b=new -box:b -b.1",
        [("deleted", "box:b=old"), ("deleted", "b.1=1(old)")],
    ),
    "both come and go": ("", "box:b=full b.1=1 -b.1 -box:b", []),
    "access": ("user:8=x", "user:7=x -user:8", [("created", "user 7"), ("deleted", "user 8")]),
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_command_makes_one_change_of_each_row(harness: ScriptHarness, name: str) -> None:
    """A change says how a row was before the command and is after it, not what came between."""
    before, text, expected = SCRIPTS[name]
    harness.run(before, text)
    found = [tell(change) for change in changes_of(harness.machine, from_revision=2)]
    assert found == [(2, kind, what) for kind, what in expected]


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_transaction_is_one_revision(harness: ScriptHarness, name: str) -> None:
    """Parts of a transaction make the changes that one command with all touches makes, once."""
    before, text, expected = SCRIPTS[name]
    harness.run(before)
    parts = [script(touch, revision=2) for touch in text.split()]
    harness.apply(SAVEPOINT, *parts)
    assert changes_of(harness.machine, from_revision=2) == []
    harness.apply(KEEP)
    found = [tell(change) for change in changes_of(harness.machine, from_revision=2)]
    assert found == [(2, kind, what) for kind, what in expected]


@pytest.mark.parametrize("name", SCRIPTS)
@pytest.mark.parametrize("is_kept", [False, True])
def test_effects_of_one_revision_are_one_change(
    harness: ScriptHarness, name: str, is_kept: bool
) -> None:
    """Effects that come together make the changes of one command, in a transaction as outside."""
    before, text, expected = SCRIPTS[name]
    harness.run(before)
    effects = [told_script(touch, revision=2) for touch in text.split()]
    harness.apply(*([SAVEPOINT, *effects, KEEP] if is_kept else effects))
    assert harness.machine.undo.entries == []
    found = [tell(change) for change in changes_of(harness.machine, from_revision=2)]
    assert found == [(2, kind, what) for kind, what in expected]


def test_a_change_names_its_domain_and_type(harness: ScriptHarness) -> None:
    """What is not in the row comes from the domain: its stage, and the type of the entity."""
    harness.run("a=1 user:7=x")
    assert changes_of(harness.machine) == [
        watch_pb2.Change(
            revision=1,
            domain=routing_pb2.STAGE_STREAMS,
            kind=watch_pb2.CHANGE_KIND_CREATED,
            entity_type="item",
            entity=b"1",
            key=b"a",
        ),
        watch_pb2.Change(
            revision=1,
            domain=routing_pb2.STAGE_STREAMS,
            kind=watch_pb2.CHANGE_KIND_CREATED,
            user_id=7,
        ),
    ]


# Items that leave nothing but the changes of revision 1 and 9.
TRACELESS: Final[dict[str, list[pb.Item]]] = {
    "refused": [script("a=2", revision=2, fault="refuse")],
    "a defect": [script("a=2", revision=2, fault="defect")],
    "only validated": [script("a=2 -a", revision=2, validate_only=True)],
    "refused by an earlier stage": [command(PUT, put_request("n", "a=2"), revision=2, refused=[0])],
    "malformed": [command(PUT, MALFORMED, revision=2)],
    "reverted": [SAVEPOINT, script("a=2 b=1", revision=2), REVERT],
    "reverted effect": [SAVEPOINT, told_script("a=2", revision=2), REVERT],
    "kept without parts": [SAVEPOINT, KEEP],
    "kept with a refused part": [SAVEPOINT, script("a=2", revision=2, fault="refuse"), KEEP],
    "an effect with a defect": [told_script("a=2 bug", revision=2)],
    "a read": [echo.query(echo.GET, echo.message("GetRequest", name="x"))],
}


@pytest.mark.parametrize("name", TRACELESS)
@pytest.mark.parametrize("is_split", [False, True], ids=["one batch", "a batch each"])
def test_what_was_taken_back_leaves_no_change(
    harness: ScriptHarness, name: str, is_split: bool
) -> None:
    """Commands and effects that changed nothing in the end are no changes, nor in others."""
    items = [script("a=1", revision=1), *TRACELESS[name], script("a=3", revision=9)]
    for together in [[item] for item in items] if is_split else [items]:
        harness.apply(*together)
    assert all_told(harness) == [(1, "created", "a=1"), (9, "updated", "a=3")]


def test_an_effect_with_a_defect_takes_back_its_own_touches(harness: ScriptHarness) -> None:
    """Others of the same revision are changes, though the defective one came between them."""
    texts = ["a=1", "a=2 b=1 bug", "c=1 a=3"]
    harness.apply(*(told_script(text, revision=4) for text in texts))
    assert all_told(harness) == [(4, "created", "a=3"), (4, "created", "c=1")]
    assert len(harness.machine.alarms) == 1


def test_effects_of_other_revisions_are_other_changes(harness: ScriptHarness) -> None:
    """Effects are put together by their revision, and with nothing that stands between them."""
    effects = [told_script("a=1", 2), told_script("a=2", 2), told_script("a=3", 3)]
    harness.apply(*effects, script("a=4", revision=4), told_script("a=5", 5))
    assert [(revision, what) for revision, _, what in all_told(harness)] == [
        (2, "a=2"),
        (3, "a=3"),
        (4, "a=4"),
        (5, "a=5"),
    ]
    assert harness.machine.undo.entries == []


def test_revisions_that_change_nothing_have_no_changes(harness: ScriptHarness) -> None:
    """Each command of a span has its own revision, also behind ones that are refused."""
    requests = [put_request("n", text) for text in ("a=1", "b=1", "a", "a=2")]
    requests[1] = put_request("n", "b=1", fault="refuse")
    harness.apply(command(PUT, *requests, revision=10))
    assert all_told(harness) == [(10, "created", "a=1"), (13, "updated", "a=2")]


# Scripts of one span, from which the bulk handler takes what it can.
SPANS: Final[dict[str, list[str]]] = {
    "all plain": [f"n{number}=x" for number in range(3 * BULK_ITEMS_MIN)],
    "first is not": ["a=1 b=1", *(f"n{number}=x" for number in range(3 * BULK_ITEMS_MIN))],
    "repeated names": [f"n{number % 9}={number}" for number in range(3 * BULK_ITEMS_MIN)],
    "updates and deletes": ["a=1", "a=2", "-a", "a=3", "a"] * BULK_ITEMS_MIN,
}


def in_span(harness: ScriptHarness, texts: list[str]) -> None:
    """Apply the scripts as one span."""
    harness.apply(script(*texts, revision=1))


def in_isolation(harness: ScriptHarness, texts: list[str]) -> None:
    """Apply the scripts as one span, as after the death of a process."""
    harness.machine.apply(batch(1, script(*texts, revision=1)), ENDLESS, Isolation())


def one_by_one(harness: ScriptHarness, texts: list[str]) -> None:
    """Apply each script as a batch."""
    harness.run(*texts)


@pytest.mark.parametrize("name", SPANS)
@pytest.mark.parametrize("way", [in_span, in_isolation])
def test_every_way_makes_the_same_changes(name: str, way: Any) -> None:
    """Bulk handlers, spans, single batches and isolation note the same, at the same revisions."""
    harness, other = ScriptHarness(), ScriptHarness()
    one_by_one(harness, SPANS[name])
    way(other, SPANS[name])
    expected = changes_of(harness.machine)
    assert len(expected) >= 3 * BULK_ITEMS_MIN
    assert changes_of(other.machine) == expected


def test_changes_in_bulk_wait_for_their_transaction(harness: ScriptHarness) -> None:
    """What a bulk handler does under a savepoint is noted when that is kept, or never."""
    texts = SPANS["all plain"]
    harness.apply(SAVEPOINT, script(*texts, revision=1), REVERT)
    assert all_told(harness) == []
    harness.apply(SAVEPOINT, script(*texts, revision=1), KEEP)
    assert len(all_told(harness)) == len(texts)


def test_a_section_begins_anew() -> None:
    """A machine made of a section knows the changes behind its revision, as those before it."""
    words: WatchedKind[Any] = WatchedKind(
        entity_type="word",
        table=lambda state: state.words,
        describe=lambda change, word, _: setattr(change, "key", word.text.encode()),
    )
    trial = SnapshotTrial(replace(echo.DOMAIN, watched=(words,)))

    def put(name: str, text: str, revision: int) -> None:
        item = command(PUT, put_request(name, text), revision=revision)
        trial.machine.apply(batch(trial.machine.sequence + 1, item))

    put("a", "before", 5)
    trial.cut()
    trial.read()
    put("a", "after", 9)
    live = trial.machine
    trial.restart(1)
    put("b", "anew", 12)
    page = page_of(trial.machine)
    assert page.oldest_revision == 6
    assert [(c.revision, c.kind, c.key) for c in page.changes] == [
        (9, watch_pb2.CHANGE_KIND_UPDATED, b"after"),
        (12, watch_pb2.CHANGE_KIND_CREATED, b"anew"),
    ]
    assert page.changes[:1] == changes_of(live, from_revision=6)
    assert page_of(live).oldest_revision == 1


def test_a_domain_without_watched_rows_has_no_changes() -> None:
    """Watching is optional for a domain: its machine answers empty pages."""
    machine: Machine[Any] = Machine(echo.DOMAIN)
    machine.apply(batch(1, command(PUT, put_request("a"), put_request("b"))))
    assert page_of(machine) == pb.ChangesPage(oldest_revision=1)
