"""Is there an order of these operations that one register could have gone through?

The algorithm of Wing and Gong (1993) with the memory of visited states that Lowe (2017) added: try
every operation that nothing unfinished must come before, go on from the state that it leaves, and
never look twice at the same set of operations with the same state. Its cost grows with how many
operations overlap, so histories are split by key before.

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
    frames = [(0, model.initial, _candidates(operations, everything))]
    steps = 0
    while frames:
        done, state, candidates = frames[-1]
        if done & answered == answered:
            return [operations[index] for index in path]
        if not candidates:
            frames.pop()
            if path:
                path.pop()
            continue
        steps += 1
        if steps > steps_max:
            raise Undecided(f"{len(operations)} operations: no verdict in {steps_max} steps")
        index = candidates.pop()
        output, after = model.step(state, operations[index])
        reached = (done | 1 << index, after)
        if _explains(operations[index], output) and reached not in visited:
            visited.add(reached)
            path.append(index)
            frames.append((*reached, _candidates(operations, everything & ~reached[0])))
    return None


def _explains(operation: Operation, output: object) -> bool:
    return not operation.is_answered or operation.output == output


def _candidates(operations: Sequence[Operation], left: int) -> list[int]:
    """Those left that no other one left must come before; the earliest called is last.

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
    return found[::-1]
