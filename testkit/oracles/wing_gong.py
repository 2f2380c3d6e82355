"""Is there an order of these operations that one register could have gone through?

The algorithm of Wing and Gong (1993) with the memory of visited states that Lowe (2017) added: try
every operation that nothing unfinished must come before, go on from the state that it leaves, and
never look twice at the same set of operations with the same state. Histories are split by key
before, because its cost grows with how many operations overlap.

Three rules leave out orders that cannot matter. If some order explains the history, one that
follows the rules does:

* An answered operation that may come next, whose answer fits and which changes nothing, comes next.
  It can move to the front of any order of what is left: the state there is the one that it needs.
* An operation without an answer that would change nothing does not come next. It may as well never
  take effect.
* Of operations without an answer that are alike, the one called first comes first. None of them has
  to come before any other operation, so they can change places.

It knows nothing of revisions, journals or views: an independent judge of what clients saw.
"""

from __future__ import annotations

from collections.abc import Sequence

from testkit.oracles.history import Operation, SequentialModel, State

STEPS_MAX = 2_000_000
"""More steps than this give up, loudly: a verdict that was not reached is none."""


class Undecided(Exception):  # noqa: N818 - reads as the sentence it is
    """The search was given up; check a shorter history, or one of fewer overlapping operations."""


def linearization(
    history: Sequence[Operation], model: SequentialModel[State], *, steps_max: int = STEPS_MAX
) -> list[Operation] | None:
    """Return an order that explains every answer, or None if there is none. Raises Undecided."""
    operations = sorted(history, key=lambda each: each.called_at)
    everything = (1 << len(operations)) - 1
    answered = sum(1 << i for i, each in enumerate(operations) if each.is_answered)
    visited: set[tuple[int, State]] = set()
    path: list[int] = []
    # Each frame: the operations done, the state then, and those that may come next.
    frames = [(0, model.initial, _choices(operations, everything, model.initial, model))]
    steps = 0
    while frames:
        done, _, choices = frames[-1]
        if done & answered == answered:
            return [operations[index] for index in path]
        if not choices:
            frames.pop()
            if path:
                path.pop()
            continue
        steps += 1
        if steps > steps_max:
            raise Undecided(f"{len(operations)} operations: no verdict in {steps_max} steps")
        index, state = choices.pop()
        reached = (done | 1 << index, state)
        if reached not in visited:
            visited.add(reached)
            path.append(index)
            left = everything & ~reached[0]
            frames.append((*reached, _choices(operations, left, state, model)))
    return None


def _choices(
    operations: Sequence[Operation], left: int, state: State, model: SequentialModel[State]
) -> list[tuple[int, State]]:
    """Return what may come next, each with the state after it, by the three rules.

    What is last is tried first: the answered before the others, the earliest called of each.
    """
    known: list[tuple[int, State]] = []
    unknown: dict[tuple[str, object], tuple[int, State]] = {}
    for index in _candidates(operations, left):
        operation = operations[index]
        output, after = model.step(state, operation)
        if operation.is_answered:
            if operation.output != output:
                continue
            if after == state:
                return [(index, after)]
            known.append((index, after))
        elif after != state:
            unknown.setdefault((operation.kind, operation.argument), (index, after))
    return [*reversed(unknown.values()), *reversed(known)]


def _candidates(operations: Sequence[Operation], left: int) -> list[int]:
    """Return those left that no other one left must come before, the earliest called first.

    Operations stand in the order of their calls: the first that was called after another one left
    had returned ends the search, because all others were called later.
    """
    found: list[int] = []
    first_return: int | None = None
    while left:
        lowest = left & -left
        operation = operations[index := lowest.bit_length() - 1]
        if first_return is not None and operation.called_at > first_return:
            break
        returned_at = operation.returned_at
        if returned_at is not None and (first_return is None or returned_at < first_return):
            first_return = returned_at
        found.append(index)
        left ^= lowest
    return found
