"""The judges of histories are judged: by hand-made cases, by brute force, and by each other."""

from __future__ import annotations

from itertools import permutations
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from testkit.oracles import wing_gong, witness
from testkit.oracles.history import (
    Operation,
    SequentialModel,
    by_key,
    demand_sequential_clients,
)


def step(state: int, operation: Operation) -> tuple[object, int]:
    """A register: `write` returns the previous value, `read` the current one."""
    if operation.kind == "write":
        assert isinstance(operation.argument, int)
        return state, operation.argument
    return state, state


REGISTER = SequentialModel(0, step)
READS = frozenset({"read"})


def write(value: int, called: int, returned: int | None, before: int | None = None) -> Operation:
    return Operation(called, "write", value, called, returned, before)


def read(called: int, returned: int, value: int) -> Operation:
    return Operation(called, "read", None, called, returned, value)


CASES = [
    ("nothing happened", [], True),
    ("one after another", [write(1, 0, 1, 0), read(2, 3, 1)], True),
    ("a stale read", [write(1, 0, 1, 0), read(2, 3, 0)], False),
    ("overlapping: either order will do", [write(1, 0, 5, 0), read(1, 4, 0)], True),
    ("overlapping: the other order", [write(1, 0, 5, 0), read(1, 4, 1)], True),
    ("reads that go back", [write(1, 0, 9, 0), read(1, 2, 1), read(3, 4, 0)], False),
    ("a lost write", [write(1, 0, 1, 0), write(2, 2, 3, 0)], False),
    ("unanswered, took effect", [write(1, 0, None), read(5, 6, 1)], True),
    ("unanswered, never took effect", [write(1, 0, None), read(5, 6, 0)], True),
    ("unanswered, took effect late", [write(1, 0, None), read(1, 2, 0), read(5, 6, 1)], True),
    ("unanswered, took effect twice", [
        write(1, 0, None), read(1, 2, 1), write(2, 3, 4, 1), read(5, 6, 1)], False),
]  # fmt: skip


@pytest.mark.parametrize(("name", "history", "expected"), CASES, ids=[case[0] for case in CASES])
def test_wing_gong_by_hand(name: str, history: list[Operation], expected: bool) -> None:
    """Small histories of a register are judged as a person would."""
    assert (wing_gong.linearization(history, REGISTER) is not None) is expected


def brute_force(history: list[Operation]) -> bool:
    """Whether any order of the answered ones and some of the others explains all answers."""
    unanswered = [each for each in history if not each.is_answered]
    for chosen in range(1 << len(unanswered)):
        extra = [each for index, each in enumerate(unanswered) if chosen >> index & 1]
        operations = [each for each in history if each.is_answered] + extra
        if any(explains(list(order)) for order in permutations(operations)):
            return True
    return False


def explains(order: list[Operation]) -> bool:
    state = 0
    for index, operation in enumerate(order):
        if any(later.precedes(operation) for later in order[index + 1 :]):
            return False
        output, state = step(state, operation)
        if operation.is_answered and operation.output != output:
            return False
    return True


@st.composite
def histories(draw: st.DrawFn) -> list[Operation]:
    """Up to 6 operations at random times with random answers, some of them none."""
    history = []
    for client in range(draw(st.integers(0, 6))):
        called = draw(st.integers(0, 8))
        kind = draw(st.sampled_from(["read", "write"]))
        argument = draw(st.integers(1, 2)) if kind == "write" else None
        if kind == "write" and draw(st.booleans()):
            history.append(Operation(client, kind, argument, called))
            continue
        returned = called + draw(st.integers(1, 5))
        history.append(Operation(client, kind, argument, called, returned, draw(st.integers(0, 2))))
    return history


@given(histories())
@settings(max_examples=300, deadline=None)
def test_wing_gong_agrees_with_brute_force(history: list[Operation]) -> None:
    """On random small histories the verdict equals that of trying every order."""
    assert (wing_gong.linearization(history, REGISTER) is not None) == brute_force(history)


def simulated(seed: int, count: int) -> list[Operation]:
    """A linearizable history of 5 clients, each operation taking place inside its interval."""
    random = Random(seed)
    free_at = [0] * 5
    plans = []
    for _ in range(count):
        client = random.randrange(5)
        called = free_at[client] + random.randrange(1, 5)
        takes_place = called + random.randrange(1, 10)
        returned = takes_place + random.randrange(1, 10)
        free_at[client] = returned
        plans.append((takes_place, random.random(), client, called, returned))
    history, state = [], 0
    for revision, (_, _, client, called, returned) in enumerate(sorted(plans), start=1):
        kind = random.choice(["read", "write"])
        operation = Operation(client, kind, random.randrange(1, 9), called)
        output, state = step(state, operation)
        answered = random.random() < 0.95 or kind == "read"
        history.append(
            Operation(
                client, kind, operation.argument, called,
                returned if answered else None, output if answered else None, revision,
            )
        )  # fmt: skip
    return history


@pytest.mark.parametrize("seed", range(5))
def test_long_histories_are_judged(seed: int) -> None:
    """Some hundreds of overlapping operations are linearizable, and no longer when one lies."""
    history = simulated(seed, 300)
    demand_sequential_clients(history)
    found = wing_gong.linearization(history, REGISTER)
    assert found is not None
    assert explains_as_given(found)
    liar = Random(seed).choice([i for i, each in enumerate(history) if each.is_answered])
    false = history[liar]
    history[liar] = Operation(
        false.client, false.kind, false.argument, false.called_at, false.returned_at, 99
    )
    assert wing_gong.linearization(history, REGISTER) is None


def explains_as_given(order: list[Operation]) -> bool:
    """A linear check of an order: answers by the model, times by the latest call so far."""
    state, latest_call = 0, -1
    for operation in order:
        output, state = step(state, operation)
        if operation.is_answered and operation.output != output:
            return False
        if operation.returned_at is not None and operation.returned_at < latest_call:
            return False
        latest_call = max(latest_call, operation.called_at)
    return True


def without_answers(count: int, *, ends_well: bool) -> list[Operation]:
    """Writes of two values that nobody knows of, then reads that saw both in turns.

    The last read may see a value that nobody wrote.
    """
    lost = [write(1 + number % 2, number, None) for number in range(count)]
    seen = [1 + number % 2 for number in range(count // 2)]
    seen[-1] = seen[-1] if ends_well else 9
    begun = 2 * count
    return [*lost, *(read(begun + 2 * at, begun + 2 * at + 1, it) for at, it in enumerate(seen))]


@pytest.mark.parametrize("ends_well", [True, False])
def test_many_writes_without_an_answer_are_judged(ends_well: bool) -> None:
    """Writes that are alike are not tried in each other's place, which would never end."""
    history = without_answers(60, ends_well=ends_well)

    found = wing_gong.linearization(history, REGISTER, steps_max=20_000)

    assert (found is not None) is ends_well


def test_giving_up_is_no_verdict() -> None:
    """A search that is too long says so instead of calling the history good."""
    with pytest.raises(wing_gong.Undecided, match="no verdict in 10 steps"):
        wing_gong.linearization(simulated(1, 300), REGISTER, steps_max=10)


def with_revision(operation: Operation, revision: int) -> Operation:
    return Operation(
        operation.client, operation.kind, operation.argument, operation.called_at,
        operation.returned_at, operation.output, revision,
    )  # fmt: skip


def test_witness_accepts_what_revisions_explain() -> None:
    """A write, and a read of its revision, in an order that time allows."""
    history = [with_revision(write(1, 0, 5, 0), 7), with_revision(read(6, 8, 1), 7)]
    assert witness.violations(history, REGISTER, reads=READS) == []


def test_witness_names_each_contradiction() -> None:
    """Two writes at one revision, an order against time, and a wrong answer are three sentences."""
    doubled = [with_revision(write(1, 0, 5, 0), 7), with_revision(write(2, 0, 5, 1), 7)]
    assert "revision 7 was given to" in witness.violations(doubled, REGISTER)[0]
    backward = [with_revision(write(1, 10, 12, 0), 1), with_revision(write(2, 0, 5, 1), 2)]
    assert "had returned before" in witness.violations(backward, REGISTER)[0]
    wrong = [with_revision(write(1, 0, 5, 0), 1), with_revision(read(6, 7, 0), 1)]
    assert "should have been answered 1" in witness.violations(wrong, REGISTER, reads=READS)[0]


def test_histories_are_split_by_key() -> None:
    """Operations of different keys are judged apart."""
    assert by_key([("a", write(1, 0, 1, 0)), ("b", read(2, 3, 0))]) == {
        "a": [write(1, 0, 1, 0)],
        "b": [read(2, 3, 0)],
    }
