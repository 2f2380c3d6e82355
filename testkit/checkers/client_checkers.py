"""Promises to clients: what they are told is true, kept, and done once."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from testkit.checkers.checker import AskedRead, Checker, Executed, ToldAnswer
from testkit.checkers.history import History


class DigestsEqual(Checker):
    """After each entry, every replica is in the same state."""

    def __init__(self, history: History) -> None:
        super().__init__(history)
        self._digests: dict[int, Hashable] = {}

    def executed(self, replica: int, executed: Executed) -> None:
        if executed.digest is None:
            return
        agreed = self._digests.setdefault(executed.op, executed.digest)
        if agreed != executed.digest:
            raise self.broken(f"replica {replica} is in another state after op {executed.op}")


class SnapshotsAgree(Checker):
    """The same cut has the same root everywhere."""

    def __init__(self, history: History) -> None:
        super().__init__(history)
        self._roots: dict[int, bytes] = {}

    def snapshot_written(self, replica: int, generation: int, root: bytes) -> None:
        agreed = self._roots.setdefault(generation, root)
        if agreed != root:
            raise self.broken(f"replica {replica} differs in generation {generation}")


class ExactlyOnce(Checker):
    """A request takes effect in one entry, the same on every replica, however often it is sent."""

    def __init__(self, history: History) -> None:
        super().__init__(history)
        self._effective: dict[Hashable, int] = {}

    def executed(self, replica: int, executed: Executed) -> None:
        for request in executed.effective:
            before = self._effective.setdefault(request, executed.op)
            if before != executed.op:
                raise self.broken(
                    f"request {request} took effect at ops {before} and {executed.op}"
                )


class AcknowledgedIsKept(Checker):
    """An acknowledged request is on a quorum of disks at that moment, and in the one history."""

    def acknowledged(self, request: Any, answer: ToldAnswer) -> None:
        # The reply came out of this entry, or of one before it.
        checksum = self.history.checksum(answer.op)
        if checksum is None:
            raise self.broken(f"{request} was answered with op {answer.op}, which nobody executed")
        copies = self.history.copies(answer.op, checksum)
        if copies < self.history.replication(answer.op):
            raise self.broken(f"op {answer.op} was acknowledged with {copies} durable copies")
        self.history.acknowledged_op = max(self.history.acknowledged_op, answer.op)


class ReadsAreLinearizable(Checker):
    """A read sees all that anybody had been told of before it was asked for."""

    def __init__(self, history: History) -> None:
        super().__init__(history)
        self._known_op: dict[tuple[int, int], int] = {}
        self._told_op = 0

    def acknowledged(self, request: Any, answer: ToldAnswer) -> None:
        self._told_op = max(self._told_op, answer.op)

    def read_asked(self, read: AskedRead) -> None:
        self._known_op[read.client, read.number] = self._told_op

    def read(self, read: AskedRead, answer: ToldAnswer) -> None:
        known_op = self._known_op.pop((read.client, read.number))
        if answer.op < known_op:
            raise self.broken(f"{read} was answered of op {answer.op}; op {known_op} was known")
        self._told_op = max(self._told_op, answer.op)
