"""What clients saw of one key: operations with the times of call and return, and their answers.

Times are any integers that one clock gave (ticks of a simulation, nanoseconds of one machine). An
operation whose answer never came has neither a return nor an output: it may have taken effect at
any moment after its call, or never.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

Key = TypeVar("Key")
State = TypeVar("State")


@dataclass(frozen=True, slots=True)
class Operation:
    """One call of one client. `revision` is where the cluster says that it took place."""

    client: int
    kind: str
    argument: object
    called_at: int
    returned_at: int | None = None
    output: object = None
    revision: int | None = None

    @property
    def is_answered(self) -> bool:
        """Whether the client knows the outcome."""
        return self.returned_at is not None

    def precedes(self, other: Operation) -> bool:
        """Whether this one had returned before the other was called."""
        return self.returned_at is not None and self.returned_at < other.called_at


@dataclass(frozen=True, slots=True)
class SequentialModel(Generic[State]):
    """What one key does when operations come one at a time.

    `step` returns the output and the state after it, by the kind and the argument alone; states,
    kinds and arguments are compared and hashed.
    """

    initial: State
    step: Callable[[State, Operation], tuple[object, State]]


def by_key(operations: Iterable[tuple[Key, Operation]]) -> dict[Key, list[Operation]]:
    """Split a history: it is linearizable if and only if the history of each key is.

    (Herlihy and Wing, 1990, section 3.1: linearizability is local.)
    """
    histories: dict[Key, list[Operation]] = {}
    for key, operation in operations:
        histories.setdefault(key, []).append(operation)
    return histories


def demand_sequential_clients(history: Sequence[Operation]) -> None:
    """Raise ValueError where a client called before its last answer: no history of ours."""
    last: dict[int, Operation] = {}
    for operation in sorted(history, key=lambda each: each.called_at):
        before = last.get(operation.client)
        if before is not None and before.is_answered and not before.precedes(operation):
            raise ValueError(f"client {operation.client} called {operation} during {before}")
        last[operation.client] = operation
