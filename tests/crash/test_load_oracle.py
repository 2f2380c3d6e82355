"""The oracle of the load accepts what is right, and sees every planted violation."""

from __future__ import annotations

import random
from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from pathlib import Path

import pytest

from testkit.load.commands import Command, CommandKind, LoadOutcome, request_of
from testkit.load.kills import PlannedKill, ProcessKill, check_kills
from testkit.load.model import LoadModel
from testkit.load.oracle import Check, Digests, Violation, check_digests, check_records
from testkit.load.records import Duplicate, LoadAnswer, Record, RecordFile, read_records
from testkit.load.state import Grant, LoadState, LoadUser
from testkit.load.workload import GroupName, LoadWorkload

ALICE, BOB = 5, 6  # sessions, named by the revisions of their registration


def answer(
    session: int, number: int, revision: int, *pairs: tuple[Command, LoadOutcome]
) -> LoadAnswer:
    """Return an answer whose times of sending and of arrival follow from its revision."""
    return LoadAnswer(
        session=session,
        number=number,
        commands=tuple(command for command, _ in pairs),
        first_revision=revision,
        outcomes=tuple(outcome for _, outcome in pairs),
        digest=f"digest of {session}/{number}",
        sends=1,
        sent_ns=100 * revision,
        answered_ns=100 * revision + 50,
    )


ORDERS = Command(CommandKind.CREATE_STREAM, "orders")
PAID = Command(CommandKind.CREATE_TOPIC, "orders", "paid", partitions=2)
READERS = Command(CommandKind.CREATE_GROUP, "orders", "paid", "readers")
DONE = LoadOutcome()

HISTORY: tuple[Record, ...] = (
    answer(ALICE, 1, 10, (ORDERS, LoadOutcome(entity_id=1)), (PAID, LoadOutcome(entity_id=1))),
    answer(BOB, 1, 12, (ORDERS, LoadOutcome("STREAM_EXISTS"))),
    answer(BOB, 2, 13, (READERS, LoadOutcome(entity_id=1))),
    answer(ALICE, 2, 14, (Command(CommandKind.JOIN, "orders", "paid", "readers"), DONE)),
    answer(BOB, 3, 15, (Command(CommandKind.JOIN, "orders", "paid", "readers"), DONE)),
    answer(BOB, 4, 16, (Command(CommandKind.LEAVE, "orders", "paid", "readers"), DONE)),
    answer(
        BOB,
        5,
        17,
        (Command(CommandKind.LEAVE, "orders", "paid", "readers"), LoadOutcome("NOT_A_MEMBER")),
    ),
    answer(
        ALICE, 3, 18, (Command(CommandKind.CREATE_USER, name="carol"), LoadOutcome(entity_id=7))
    ),
    answer(ALICE, 4, 19, (Command(CommandKind.GRANT, "orders", name="carol"), DONE)),
    answer(ALICE, 5, 20, (Command(CommandKind.CREATE_TOKEN, name="key"), DONE)),
    answer(ALICE, 6, 21, (Command(CommandKind.CREATE_STREAM, "old"), LoadOutcome(entity_id=2))),
    answer(ALICE, 7, 22, (Command(CommandKind.DELETE_STREAM, "old"), DONE)),
    Duplicate(BOB, 2, f"digest of {BOB}/2"),
)


def before() -> LoadState:
    """Return the state before the history."""
    return LoadState(users={"root": LoadUser(0, 1)})


def after() -> LoadState:
    """Return the state that the history leads to."""
    model = LoadModel(before())
    for record in HISTORY:
        if isinstance(record, LoadAnswer):
            for index, (command, outcome) in enumerate(
                zip(record.commands, record.outcomes, strict=True)
            ):
                revision = record.first_revision + index
                model.apply(command, record.session, revision, outcome)
    return model.state


def changed(position: int, **fields: object) -> list[Record]:
    """Return the history with one record changed."""
    records = list(HISTORY)
    records[position] = replace(records[position], **fields)  # type: ignore[arg-type]
    return records


def without(position: int) -> list[Record]:
    """Return the history without one record."""
    return [record for index, record in enumerate(HISTORY) if index != position]


def checks(violations: list[Violation]) -> set[Check]:
    """Return the names of the checks that found something."""
    return {violation.check for violation in violations}


def test_a_right_history_is_accepted() -> None:
    """The checks find nothing in a right history, and the state is the one expected by hand."""
    state = after()

    assert check_records(HISTORY, before(), state) == []
    assert state.counts() == {
        "streams": 1,
        "topics": 1,
        "consumer groups": 1,
        "memberships": 1,
        "users": 2,
        "tokens": 1,
    }
    assert state.streams["orders"].topics["paid"].groups["readers"].members == {ALICE}
    assert state.users["carol"].grants == {Grant(1, 0)}


@pytest.mark.parametrize(
    ("records", "check"),
    [
        pytest.param([*HISTORY, HISTORY[1]], Check.ONCE, id="answered twice"),
        pytest.param(without(4), Check.ONCE, id="a number without answer"),
        pytest.param(changed(1, outcomes=()), Check.ONCE, id="an outcome is missing"),
        pytest.param(changed(2, first_revision=12), Check.REVISIONS, id="doubled revision"),
        pytest.param(changed(2, first_revision=11), Check.REVISIONS, id="overlapping requests"),
        pytest.param(changed(2, first_revision=ALICE), Check.REVISIONS, id="that of a session"),
        pytest.param(changed(12, digest="other"), Check.SAME_BYTES, id="differing reply"),
        pytest.param(changed(12, number=9), Check.SAME_BYTES, id="a copy of nothing"),
        pytest.param(changed(3, sends=2), Check.SAME_BYTES, id="sent again, not compared"),
        pytest.param(changed(9, first_revision=40), Check.ORDER, id="session out of order"),
        pytest.param(
            changed(7, sent_ns=9000, answered_ns=9001), Check.ORDER, id="older than what it saw"
        ),
        pytest.param(
            changed(1, outcomes=(LoadOutcome(entity_id=9),)), Check.OUTCOMES, id="no refusal"
        ),
        pytest.param(
            changed(4, outcomes=(LoadOutcome("GROUP_NOT_FOUND"),)), Check.OUTCOMES, id="lost"
        ),
        pytest.param(
            changed(10, outcomes=(LoadOutcome(entity_id=1),)), Check.IDS, id="id given twice"
        ),
    ],
)
def test_a_planted_violation_in_the_records_is_seen(records: list[Record], check: Check) -> None:
    """Each broken promise about answers is found by the check for it."""
    assert check in checks(check_records(records, before(), after()))


def lose_create(state: LoadState) -> None:
    """Forget an acknowledged stream, with all in it."""
    del state.streams["orders"]


def lose_delete(state: LoadState) -> None:
    """Bring back a stream whose deletion was acknowledged."""
    state.streams["old"] = deepcopy(state.streams["orders"])


def lose_join(state: LoadState) -> None:
    """Forget an acknowledged membership."""
    state.streams["orders"].topics["paid"].groups["readers"].members.clear()


def lose_leave(state: LoadState) -> None:
    """Bring back a membership whose end was acknowledged."""
    state.streams["orders"].topics["paid"].groups["readers"].members.add(BOB)


def apply_twice(state: LoadState) -> None:
    """Create an entity at another revision than the acknowledged one."""
    state.streams["orders"].topics["paid"].revision += 1


def lose_grant(state: LoadState) -> None:
    """Forget an acknowledged grant."""
    state.users["carol"].grants.clear()


def lose_token(state: LoadState) -> None:
    """Forget an acknowledged token."""
    state.tokens.clear()


@pytest.mark.parametrize(
    "damage",
    [lose_create, lose_delete, lose_join, lose_leave, apply_twice, lose_grant, lose_token],
)
def test_a_planted_violation_in_the_state_is_seen(damage: Callable[[LoadState], None]) -> None:
    """An acknowledged effect that is missing is found, and so is an entity that should be gone."""
    state = after()
    damage(state)

    assert checks(check_records(HISTORY, before(), state)) == {Check.ENTITIES}


@pytest.mark.parametrize(
    ("live", "replayed", "is_seen"),
    [
        (Digests(9, {"users": "a"}), Digests(9, {"users": "a"}), False),
        (Digests(9, {"users": "a"}), Digests(11, {"users": "a"}), False),
        (Digests(9, {"users": "a"}), Digests(8, {"users": "a"}), True),
        (Digests(9, {"users": "a"}), Digests(9, {"users": "b"}), True),
        (Digests(9, {"users": "a", "sessions": "s"}), Digests(9, {"users": "a"}), True),
        (Digests(9, {"users": ""}), Digests(9, {"users": ""}), True),
        (Digests(9, {}), Digests(9, {}), True),
    ],
)
def test_a_replay_must_have_the_same_digests(
    live: Digests, replayed: Digests, is_seen: bool
) -> None:
    """The check reports a different, missing or empty digest, and a shorter log."""
    assert checks(check_digests(live, replayed)) == ({Check.DIGESTS} if is_seen else set())


@pytest.mark.parametrize(
    ("kills", "restarts", "is_seen"),
    [
        ([ProcessKill("users", 100, 1, 1)], {"users": 1}, False),
        ([ProcessKill("users", 99, 1, 1)], {"users": 1}, True),
        ([ProcessKill("streams", 100, 1, 1)], {"streams": 1}, True),
        ([], {}, True),
        ([ProcessKill("users", 100, 1, 1)], {"users": 2}, True),
    ],
)
def test_kills_must_be_those_asked_for(
    kills: list[ProcessKill], restarts: dict[str, int], is_seen: bool
) -> None:
    """The check reports too few commands in flight, another process, no kill, or a second death."""
    found = checks(check_kills([PlannedKill("users")], kills, restarts))

    assert found == ({Check.KILLS} if is_seen else set())


def test_records_survive_the_file(tmp_path: Path) -> None:
    """What is read back from the file is what was written, and a broken line is named."""
    path = tmp_path / "acknowledged.jsonl"
    with RecordFile(path) as file:
        for record in HISTORY:
            file.append(record)

    assert read_records(path) == list(HISTORY)

    path.write_text(path.read_text() + "{}\n")
    with pytest.raises(ValueError, match=rf"acknowledged\.jsonl:{len(HISTORY) + 1} is no record"):
        read_records(path)


def test_a_seed_decides_the_commands() -> None:
    """The same seed yields the same requests, every kind among them; another seed yields others."""
    groups = [GroupName("stream", "topic", "group")]

    def requests(seed: str) -> list[tuple[Command, ...]]:
        workload = LoadWorkload(seed, groups, partitions_max=4)
        return [workload.next_request() for _ in range(3000)]

    first = requests("1/0")

    assert first == requests("1/0") != requests("1/1")
    assert {command.kind for request in first for command in request} == set(CommandKind)
    for command in {command for request in first for command in request}:
        assert request_of(command).ByteSize() > 0
        assert Command.from_json(command.to_json()) == command


def test_the_order_of_records_does_not_matter() -> None:
    """Answers of many sessions arrive in any order; revisions alone decide."""
    records = list(HISTORY)
    random.Random(1).shuffle(records)

    assert check_records(records, before(), after()) == []
