"""Isolation: how a batch is handled that a process has not survived.

Commands are handled one by one, in a thread whose stack always has the same depth: a command that
overflows it is taken back and answered like any defect. Exhausted memory ends the process here,
too, because only this machine may lack it. Each attempt is reported before it is made, so that the
coordinator knows which command ended the process, and can give it up: then it is answered like a
defect without being tried. Every replica meets the same command, and so comes to the same answer
(ADR 19).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

# Item of the batch, and which call of a handler in it.
Place = tuple[int, int]


class ExhaustedError(Exception):
    """A handler has used up the stack, even alone."""


class GivenUpError(Exception):
    """A handler has ended too many processes, and is not run any more."""


class Isolation:
    """The isolation of one batch.

    `given_up` are the places that are not tried. `note` gets each place before it is tried, with
    its handler and the revision; it returns once the coordinator is sure to learn of it.
    `has_helped` is set once something failed that would otherwise have ended the process.
    """

    def __init__(
        self,
        given_up: frozenset[Place] = frozenset(),
        note: Callable[[Place, str, int], None] | None = None,
    ) -> None:
        """Begin before the first item."""
        self._given_up = given_up
        self._note = note
        self.has_helped = False
        self._item = -1
        self._call = 0

    def begin_item(self) -> None:
        """The next item of the batch is handled."""
        self._item += 1
        self._call = 0

    def guard(self, where: str, handler: Callable[..., Any]) -> Callable[..., Any]:
        """Return a handler that does what `handler` does, or fails like a defect."""

        def guarded(state: Any, request: Any, call: Any, *more: Any) -> Any:
            place = self._item, self._call
            self._call += 1
            if place in self._given_up:
                self.has_helped = True
                raise GivenUpError(f"{where} at revision {call.revision} has ended every process")
            if self._note is not None:
                self._note(place, where, call.revision)
            try:
                return handler(state, request, call, *more)
            except RecursionError as exhausted:
                self.has_helped = True
                raise ExhaustedError(f"{where} at revision {call.revision}") from exhausted

        return guarded
