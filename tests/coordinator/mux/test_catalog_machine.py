"""The catalog machine: what a command does in each state of a generation, and what is retained."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from coordinator.mux import stage as stages
from coordinator.mux.catalog import CatalogMachine
from coordinator.mux.catalog_decisions import DECISIONS, Decided, GenerationStanding
from coordinator.mux.catalog_types import (
    GENERATION_ZERO,
    NO_DESCRIPTION,
    BeginEpoch,
    BeginSnapshot,
    ClusterMembers,
    CompleteSnapshot,
    CreateSnapshot,
    DeleteSnapshot,
    Description,
    EpochMember,
    FailSnapshot,
    PruneSnapshots,
    RaiseFeatureLevel,
    RetentionClass,
    SetDescription,
    SetRetention,
    Snapshot,
    SnapshotState,
    TaskSnapshot,
)
from coordinator.mux.entities import MEMBERS_KIND
from coordinator.mux.sessions import SessionApplied, SessionRefused
from coordinator.mux.snapshot_retention import expired
from coordinator.mux.stage import Stage
from coordinator.mux.types import CatalogCommand
from testkit.composite.chains import ROOT, TASKS
from tests.coordinator.mux.fakes import FakeCodec
from viewstamp.limits import (
    FEATURE_LEVEL_GUARDS,
    FEATURE_LEVEL_KEPT_SNAPSHOTS,
    FEATURE_LEVEL_MAX,
    SECTION_SINCE_LEVEL,
    SNAPSHOT_KEPT_FOR_MAX_US,
)

DAY_US = 86_400_000_000
LEVEL = FEATURE_LEVEL_MAX
# The tasks of a build to which the catalog is not known.
OLDER_TASKS = tuple(task for task in TASKS if task.stage is not Stage.CATALOG)


class Catalog:
    """A machine that gets its commands at growing ops and revisions."""

    def __init__(self, level: int = LEVEL) -> None:
        self.machine = CatalogMachine(FakeCodec())
        self.revision = 0
        self.level = level

    def do(self, *commands: CatalogCommand) -> SessionApplied | SessionRefused:
        """Apply commands; return the outcome of the last one."""
        for command in commands:
            self.revision += 1
            at = DAY_US + self.revision
            outcome = self.machine.apply(command, self.revision, self.revision, at, self.level)
        return outcome

    def complete(self, *generations: int) -> Catalog:
        """Cut and complete generations, so that all before them stay."""
        for generation in generations:
            self.do(BeginSnapshot(generation, 99, 0), CompleteSnapshot(generation, ROOT, TASKS))
        return self

    def states(self) -> dict[int, str]:
        """Return what there is."""
        return {s.generation: s.state.name for s in self.machine.list_after(0, 99)}


# How generation 2 reaches each state.
STANDINGS: dict[GenerationStanding, Callable[[Catalog], object]] = {
    GenerationStanding.NEXT: lambda catalog: catalog.complete(1),
    GenerationStanding.BLOCKED: lambda catalog: catalog.do(CreateSnapshot()),
    GenerationStanding.UNKNOWN: lambda catalog: None,
    GenerationStanding.RESERVED: lambda catalog: catalog.complete(1).do(CreateSnapshot()),
    GenerationStanding.CUT: lambda catalog: catalog.complete(1).do(BeginSnapshot(2, 1, 0)),
    GenerationStanding.COMPLETED: lambda catalog: catalog.complete(1, 2, 3),
    GenerationStanding.LATEST: lambda catalog: catalog.complete(1, 2),
    GenerationStanding.FAILED: lambda catalog: catalog.complete(1).do(
        CreateSnapshot(), FailSnapshot(2, "x")
    ),
}
COMMANDS: list[Decided] = [
    BeginSnapshot(2, 9, 0),
    CompleteSnapshot(2, ROOT, TASKS),
    FailSnapshot(2, "late"),
    DeleteSnapshot(2),
    SetRetention(2, RetentionClass.PINNED),
]
# By command, for each state in order: the new state of generation 2, or why the command is refused.
EXPECTED = {
    BeginSnapshot: "CREATED - - CREATED CREATED COMPLETED COMPLETED FAILED",
    CompleteSnapshot: "- - - CREATED COMPLETED COMPLETED COMPLETED FAILED",
    FailSnapshot: "- - - FAILED FAILED COMPLETED COMPLETED FAILED",
    DeleteSnapshot: "not_found not_found not_found in_use in_use - in_use -",
    SetRetention: "not_found not_found not_found CREATED CREATED COMPLETED COMPLETED FAILED",
}


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: type(command).__name__)
def test_what_a_command_does_where_its_generation_stands(command: CatalogCommand) -> None:
    """Every command in every state has the outcome in this table, and makes no other change."""
    for standing, expected in zip(GenerationStanding, EXPECTED[type(command)].split(), strict=True):
        catalog = Catalog()
        STANDINGS[standing](catalog)
        assert catalog.machine.standing(2) is standing
        outcome = catalog.do(command)
        if isinstance(outcome, SessionRefused):
            assert outcome.error == b"SNAPSHOT_" + expected.upper().encode(), standing
        else:
            assert catalog.states().get(2, "-") == expected, standing


def test_the_table_is_complete() -> None:
    """Each command that names a generation has a verdict for every state."""
    for command in COMMANDS:
        assert set(DECISIONS[type(command)]) == set(GenerationStanding)
    assert set(DECISIONS[CreateSnapshot]) == {GenerationStanding.NEXT, GenerationStanding.BLOCKED}


def test_numbers_are_never_used_again() -> None:
    """A failed or deleted generation's number stays used; a reserved one that fails was never
    cut."""
    catalog = Catalog()
    assert catalog.machine.current() == catalog.machine.latest_completed() == GENERATION_ZERO
    catalog.do(CreateSnapshot(), FailSnapshot(1, "no room"), DeleteSnapshot(1))
    assert catalog.states() == {} and catalog.machine.last_generation == 1
    assert catalog.do(CreateSnapshot(RetentionClass.PINNED)) == SessionApplied(
        b"\x0a\x0cgeneration=2"
    )
    assert catalog.do(CreateSnapshot()) == SessionRefused(b"SNAPSHOT_IN_PROGRESS")
    catalog.do(BeginSnapshot(2, 1, 0))
    cut = catalog.machine.current()
    assert (cut.retention, cut.cut_op, cut.created_at) == (RetentionClass.PINNED, 6, DAY_US + 6)
    assert catalog.machine.get(0) == GENERATION_ZERO and catalog.machine.get(1) is None


MALFORMED: list[CatalogCommand] = [
    CreateSnapshot(keep_for_ms=SNAPSHOT_KEPT_FOR_MAX_US // 1_000 + 1),
    SetRetention(2, RetentionClass.LAST, keep_for_ms=SNAPSHOT_KEPT_FOR_MAX_US // 1_000 + 1),
    PruneSnapshots(0, 1),
    BeginSnapshot(1, 0, 1),
    CompleteSnapshot(1, b"short", TASKS),
    CompleteSnapshot(1, ROOT, TASKS[::-1]),
    CompleteSnapshot(1, ROOT, TASKS[:4]),
]


@pytest.mark.parametrize("command", MALFORMED, ids=repr)
def test_what_is_malformed_changes_nothing(command: CatalogCommand) -> None:
    """A command that makes no sense is refused in every state of its generation."""
    catalog = Catalog()
    catalog.do(CreateSnapshot())
    assert catalog.do(command) == SessionRefused(b"MALFORMED_REQUEST")
    assert catalog.states() == {1: "CREATED"} and not catalog.machine.current().is_cut


@pytest.mark.parametrize(
    ("level", "tasks", "state"),
    [
        (LEVEL, OLDER_TASKS, "COMPLETED"),
        (LEVEL, TASKS, "CREATED"),
        (LEVEL + 1, TASKS, "COMPLETED"),
        # The level was raised between the cut and its completion.
        (LEVEL + 1, OLDER_TASKS, "COMPLETED"),
    ],
)
def test_a_stage_that_came_later_is_no_task_below_its_level(
    level: int, tasks: tuple[TaskSnapshot, ...], state: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A build with one more stage decides a completion as the builds without it did."""
    since = {**SECTION_SINCE_LEVEL, Stage.CATALOG: LEVEL + 1}
    monkeypatch.setattr(stages, "SECTION_SINCE_LEVEL", since)
    catalog = Catalog(level)
    catalog.do(BeginSnapshot(1, 1, 0), CompleteSnapshot(1, ROOT, tasks))
    assert catalog.states() == {1: state}


def test_pruning_says_what_it_would_delete() -> None:
    """With validate_only the answer is the same and nothing changes."""
    catalog = Catalog()
    catalog.complete(1, 2, 3)
    wanted = SessionApplied(b"\x0a\x0cpruned=[1,2]")
    assert catalog.do(PruneSnapshots(1, 0, validate_only=True)) == wanted
    assert list(catalog.states()) == [3, 2, 1]
    assert catalog.do(PruneSnapshots(1, 0)) == wanted
    assert list(catalog.states()) == [3]


def _snapshots(words: str) -> list[Snapshot]:
    """Return generations 1, 2, … from words: a day, and a letter for its kind."""
    kinds = {
        "l": (SnapshotState.COMPLETED, RetentionClass.LAST),
        "d": (SnapshotState.COMPLETED, RetentionClass.DAILY),
        "p": (SnapshotState.COMPLETED, RetentionClass.PINNED),
        "f": (SnapshotState.FAILED, RetentionClass.LAST),
        "c": (SnapshotState.CREATED, RetentionClass.LAST),
    }
    found = []
    for generation, word in enumerate(words.split(), start=1):
        state, retention = kinds[word[-1]]
        one = Snapshot(generation, state, retention=retention)
        found.append(replace(one, created_at=int(word[:-1]) * DAY_US + generation))
    return found


# Day and kind of each generation, keep_last, keep_daily, today; then the generations to delete.
RETENTIONS = [
    ("the last ones stay", "1l 1l 1l 1l", 2, 0, 1, (1, 2)),
    ("nothing is completed", "1f 1f 1c", 1, 0, 9, ()),
    ("failed ones older than the last completed go", "1f 1l 1f", 1, 0, 1, (1,)),
    ("what is under way stays", "1l 1l 1c", 1, 0, 1, (1,)),
    ("pinned ones stay", "1p 1l 1l", 1, 0, 1, (2,)),
    ("the newest of each day stays", "1l 1l 2l 2l 3l", 1, 3, 3, (1, 3)),
    ("days are counted back from today", "1l 2l 3l 9l", 1, 7, 9, (1, 2)),
    ("today is one of the days", "8l 9l 9l", 1, 1, 9, (1, 2)),
    ("daily ones are not among the last", "1d 1d 1l", 3, 0, 1, (1, 2)),
    ("a daily one is its day's newest", "1l 1d 2l 2l", 1, 2, 2, (1, 3)),
    ("the last completed one stays", "1l 1d", 1, 0, 9, (1,)),
]


@pytest.mark.parametrize(
    ("words", "last", "daily", "today", "gone"),
    [row[1:] for row in RETENTIONS],
    ids=[row[0] for row in RETENTIONS],
)
def test_retention(words: str, last: int, daily: int, today: int, gone: tuple[int, ...]) -> None:
    """Retention drops exactly the generations of its row, in any order of input."""
    now_us = today * DAY_US + 99
    assert expired(_snapshots(words), last, daily, now_us) == gone
    assert expired(reversed(_snapshots(words)), last, daily, now_us) == gone


KEPT_UNTIL = 5
# What it was made with, the log time of the decision; then whether it goes.
KEPT = [
    (RetentionClass.LAST, KEPT_UNTIL, 4, False),
    (RetentionClass.LAST, KEPT_UNTIL, 5, True),
    (RetentionClass.PINNED, KEPT_UNTIL, 4, False),
    (RetentionClass.PINNED, KEPT_UNTIL, 5, True),
    (RetentionClass.PINNED, 0, 5, False),
    (RetentionClass.LAST, 0, 4, True),
]


@pytest.mark.parametrize(("retention", "kept_until", "now_us", "goes"), KEPT)
def test_a_snapshot_is_kept_until_its_time(
    retention: RetentionClass, kept_until: int, now_us: int, goes: bool
) -> None:
    """Until then no rule drops it; from then on even a pinned one is like others."""
    old = Snapshot(1, SnapshotState.COMPLETED, retention=retention, kept_until=kept_until)
    new = Snapshot(2, SnapshotState.COMPLETED)
    assert expired([old, new], 1, 0, now_us) == ((1,) if goes else ())


@pytest.mark.parametrize(("level", "kept_ms"), [(LEVEL, 7), (FEATURE_LEVEL_KEPT_SNAPSHOTS - 1, 0)])
def test_a_time_is_counted_from_the_command(level: int, kept_ms: int) -> None:
    """CreateSnapshot and SetRetention count from their own log time; below the level, as builds
    without it do, not at all. A retention without a time takes the time back."""
    catalog = Catalog(level)
    catalog.do(CreateSnapshot(keep_for_ms=7))
    decided = DAY_US + catalog.revision
    (created,) = catalog.machine.list_after(0, 9)
    assert created.kept_until == (decided + kept_ms * 1_000 if kept_ms else 0)
    catalog.do(SetRetention(1, RetentionClass.PINNED, keep_for_ms=7))
    (changed,) = catalog.machine.list_after(0, 9)
    assert bool(changed.kept_until) == bool(kept_ms) and changed.kept_until >= created.kept_until
    catalog.do(SetRetention(1, RetentionClass.LAST))
    assert catalog.machine.list_after(0, 9)[0].kept_until == 0


# Commands that people send: all take effect where generations 1 to 3 are completed.
ASKED: dict[str, Callable[..., CatalogCommand]] = {
    "create": lambda **guards: CreateSnapshot(RetentionClass.PINNED, 7, **guards),
    "delete": lambda **guards: DeleteSnapshot(2, **guards),
    "retention": lambda **guards: SetRetention(2, RetentionClass.PINNED, 7, **guards),
}


@pytest.mark.parametrize("name", ASKED)
def test_a_command_that_only_validates_changes_nothing(name: str) -> None:
    """It is answered as the command itself is a moment later, and nobody hears of a change."""
    catalog = Catalog().complete(1, 2, 3)
    catalog.machine.take_changes()
    before = list(catalog.machine.entities())
    promised = catalog.do(ASKED[name](validate_only=True))
    assert list(catalog.machine.entities()) == before
    assert catalog.machine.take_changes() == {}
    assert catalog.do(ASKED[name]()) == promised
    assert catalog.machine.take_changes() != {}


def test_validation_refuses_what_the_command_refuses() -> None:
    """What is under way, in use or gone is refused without being tried."""
    catalog = Catalog().complete(1)
    catalog.do(CreateSnapshot())
    refused: list[tuple[CatalogCommand, bytes]] = [
        (CreateSnapshot(validate_only=True), b"SNAPSHOT_IN_PROGRESS"),
        (DeleteSnapshot(1, validate_only=True), b"SNAPSHOT_IN_USE"),
        (SetRetention(9, RetentionClass.LAST, validate_only=True), b"SNAPSHOT_NOT_FOUND"),
    ]
    for command, why in refused:
        assert catalog.do(command) == SessionRefused(why)


@pytest.mark.parametrize("name", ["delete", "retention"])
def test_a_snapshot_that_changed_is_not_changed_again(name: str) -> None:
    """Every change of a snapshot has its revision, and another expected one is refused."""
    catalog = Catalog().complete(1, 2, 3)
    completed = catalog.machine.get(2)
    assert completed is not None and completed.modified_revision == 4
    catalog.do(SetRetention(2, RetentionClass.DAILY))
    changed = catalog.machine.get(2)
    assert changed is not None and changed.modified_revision == catalog.revision
    before = list(catalog.machine.entities())
    late = catalog.do(ASKED[name](expected_revision=completed.modified_revision))
    assert late == SessionRefused(b"REVISION_MISMATCH")
    assert list(catalog.machine.entities()) == before
    applied = catalog.do(ASKED[name](expected_revision=changed.modified_revision))
    assert isinstance(applied, SessionApplied)


@pytest.mark.parametrize("name", ASKED)
def test_below_the_level_guards_count_for_nothing(name: str) -> None:
    """Builds that do not know them ignore them, so all do, and keep no revision."""
    guarded, plain = (Catalog(FEATURE_LEVEL_GUARDS - 1).complete(1, 2, 3) for _ in "12")
    expected = {} if name == "create" else {"expected_revision": 99}
    outcomes = guarded.do(ASKED[name](validate_only=True, **expected)), plain.do(ASKED[name]())
    assert outcomes[0] == outcomes[1]
    assert list(guarded.machine.entities()) == list(plain.machine.entities())
    assert {each.modified_revision for each in guarded.machine.list_after(0, 9)} == {0}


def test_completion_applies_the_retention_of_its_cut() -> None:
    """A completion applies the retention of its cut, and the catalog reports the deletions."""
    catalog = Catalog()
    catalog.complete(1, 2)
    catalog.machine.take_changes()
    catalog.do(BeginSnapshot(3, 1, 0), CompleteSnapshot(3, ROOT, TASKS))
    changes = catalog.machine.take_changes()
    assert {generation for generation, kept in changes.items() if kept is None} == {1, 2}
    assert catalog.states() == {3: "COMPLETED"}
    assert [s.generation for s in catalog.machine.list_after(3, 9)] == []


@pytest.mark.parametrize(
    ("command", "level"),
    [
        (RaiseFeatureLevel(LEVEL + 1, LEVEL), LEVEL + 1),
        (RaiseFeatureLevel(LEVEL + 1, LEVEL, validate_only=True), 0),
        (RaiseFeatureLevel(LEVEL + 2, LEVEL), 0),
        (RaiseFeatureLevel(LEVEL, LEVEL), 0),
        (RaiseFeatureLevel(LEVEL, LEVEL - 1), 0),
        (RaiseFeatureLevel(LEVEL + 2, LEVEL + 1), 0),
    ],
)
def test_the_level_rises_by_one_from_what_is_in_force(
    command: RaiseFeatureLevel, level: int
) -> None:
    """Only the next level is accepted, and only from a caller who knows the level in force."""
    catalog = Catalog()
    outcome = catalog.do(command)
    assert catalog.machine.feature_level == level
    assert isinstance(outcome, SessionApplied) == (level > 0 or command.validate_only)


def test_a_level_that_is_decided_is_in_force_before_entries_have_it() -> None:
    """Of two raises in entries of the old level the second must know of the first."""
    catalog = Catalog()
    catalog.do(RaiseFeatureLevel(LEVEL + 1, LEVEL))
    assert isinstance(catalog.do(RaiseFeatureLevel(LEVEL + 1, LEVEL)), SessionRefused)
    assert isinstance(catalog.do(RaiseFeatureLevel(LEVEL + 2, LEVEL + 1)), SessionApplied)
    assert catalog.machine.feature_level == LEVEL + 2


def test_a_raise_that_is_taken_back_leaves_no_level() -> None:
    """A savepoint undoes the level like any other row; a level that stays is an entity."""
    catalog = Catalog()
    catalog.machine.savepoint()
    catalog.do(RaiseFeatureLevel(LEVEL + 1, LEVEL))
    catalog.machine.revert()
    assert catalog.machine.feature_level == 0
    assert list(catalog.machine.entities()) == []
    catalog.do(RaiseFeatureLevel(LEVEL + 1, LEVEL))
    assert [kind for kind, _, _ in catalog.machine.entities()] == [3]


def test_a_description_is_set_changed_and_taken_away() -> None:
    """A description has the revision that last set it, and is an entity only while it exists."""
    catalog = Catalog()
    assert catalog.machine.description == NO_DESCRIPTION
    catalog.do(SetDescription("staging"), SetDescription("production"))
    assert catalog.machine.description == Description("production", 2)
    assert [kind for kind, _, _ in catalog.machine.entities()] == [4]
    catalog.do(SetDescription(""), SetDescription(""))
    assert catalog.machine.description == NO_DESCRIPTION
    assert list(catalog.machine.entities()) == []


@pytest.mark.parametrize(
    ("command", "is_applied", "text"),
    [
        (SetDescription("b", expected_revision=1), True, "b"),
        (SetDescription("b", expected_revision=0), False, "a"),
        (SetDescription("b", expected_revision=2), False, "a"),
        (SetDescription("b", expected_revision=1, validate_only=True), True, "a"),
        (SetDescription("b", expected_revision=2, validate_only=True), False, "a"),
    ],
)
def test_a_description_is_set_over_the_one_that_was_expected(
    command: SetDescription, is_applied: bool, text: str
) -> None:
    """A caller whose read is outdated is refused, and a caller who only asks changes nothing."""
    catalog = Catalog()
    catalog.do(SetDescription("a"))
    assert isinstance(catalog.do(command), SessionApplied) is is_applied
    assert catalog.machine.description.text == text


def test_a_description_that_is_taken_back_leaves_none() -> None:
    """A failed transaction undoes its description like every other row."""
    catalog = Catalog()
    catalog.machine.savepoint()
    catalog.do(SetDescription("staging"))
    catalog.machine.revert()
    assert catalog.machine.description == NO_DESCRIPTION


ALONE = BeginEpoch(2**48, (EpochMember(0, "a:1"),), (), 2)
TWO = BeginEpoch(2**49, (EpochMember(0, "a:1"), EpochMember(1, "b:1", b"d" * 16)), (), 2)
NOBODY = BeginEpoch(0, (), (), 0)


@pytest.mark.parametrize(
    ("commands", "expected"),
    [
        ((), None),
        ((ALONE,), ClusterMembers(1, 2**48, ALONE.voters, (), 2)),
        ((ALONE, TWO), ClusterMembers(2, 2**49, TWO.voters, (), 2)),
        # A restore founds a cluster of its own, and has nobody to forget if nobody was named.
        ((ALONE, NOBODY), None),
        ((NOBODY,), None),
    ],
)
def test_the_catalog_names_the_members_of_the_last_change(
    commands: tuple[BeginEpoch, ...], expected: ClusterMembers | None
) -> None:
    """Nothing is refused: the entry that says it has ended the epoch already."""
    catalog = Catalog()
    for command in commands:
        assert isinstance(catalog.do(command), SessionApplied)
    assert catalog.machine.members == expected
    kinds = [kind for kind, _, _ in catalog.machine.entities()]
    assert (MEMBERS_KIND in kinds) is (expected is not None)
