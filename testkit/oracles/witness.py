"""Checks a history against the order that the cluster itself names: the revisions of its answers.

Fast (a sort), and enough: if replaying the operations by revision gives every answer, and the
revisions agree with real time, the history is linearizable. It takes the cluster's word for the
order, so `wing_gong`, which does not, looks at samples of the same histories.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from testkit.oracles.history import Operation, SequentialModel, State


def violations(
    history: Sequence[Operation],
    model: SequentialModel[State],
    *,
    reads: frozenset[str] = frozenset(),
) -> list[str]:
    """Return a sentence for each contradiction between answers and revisions.

    Operations of the kinds in `reads` take no revision of their own: theirs is the state that they
    saw. Those without an answer are left out, so a caller who wants them judged learns first, by
    reading back, which of them took effect.
    """
    answered = [each for each in history if each.is_answered and each.revision is not None]
    order = sorted(answered, key=lambda each: (each.revision, each.kind in reads, each.called_at))
    return [
        *_repeated(order, reads),
        *_against_time(order),
        *_against_model(order, model),
    ]


def _repeated(order: Sequence[Operation], reads: frozenset[str]) -> list[str]:
    writes = [each for each in order if each.kind not in reads]
    return [
        f"revision {later.revision} was given to {earlier} and to {later}"
        for earlier, later in pairwise(writes)
        if earlier.revision == later.revision
    ]


def _against_time(order: Sequence[Operation]) -> list[str]:
    """An operation of a lower revision was called after one of a higher revision had returned."""
    found = []
    latest_call: Operation | None = None
    for operation in order:
        goes_back = latest_call is not None and operation.precedes(latest_call)
        if latest_call is not None and goes_back and operation.revision != latest_call.revision:
            found.append(f"{operation} had returned before {latest_call} was called")
        if latest_call is None or operation.called_at > latest_call.called_at:
            latest_call = operation
    return found


def _against_model(order: Sequence[Operation], model: SequentialModel[State]) -> list[str]:
    found = []
    state = model.initial
    for operation in order:
        output, state = model.step(state, operation)
        if operation.output != output:
            found.append(f"{operation} should have been answered {output}")
    return found
