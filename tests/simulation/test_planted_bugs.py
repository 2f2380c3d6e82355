"""Every checker can fail: for each there is a bug that, once planted, it finds in some seed.

A bug is put in place of a function of the core, the journal or the stages. The seeds are short;
that some seed of a few finds it is what a campaign of many relies on.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

import pytest

from coordinator import vsr
from coordinator.journal import Journal
from coordinator.mux.sessions import HeaderVerdict, SessionsMachine
from coordinator.replica.bootstrap import SuperblockFile
from coordinator.vsr import commit, normal, reads
from coordinator.vsr.state import State
from tests.simulation.chain import ChainApplication
from tests.simulation.options import FaultKind, Options, Scale, draw
from tests.simulation.process import Process

SEEDS: Final = range(1, 31)
NETWORK: Final = frozenset({FaultKind.LOSS, FaultKind.DELAY, FaultKind.DUPLICATION})
CRASHES: Final = frozenset({FaultKind.CRASH, FaultKind.POWER})


def options(seed: int, replica_count: int, faults: frozenset[FaultKind], **changes: Any) -> Options:
    """What a seed draws, with these faults and so many replicas."""
    drawn = replace(draw(seed, Scale.QUICK), application="chain", reads_percent=20)
    return replace(drawn, replica_count=replica_count, faults=faults, **changes)


def commit_without_quorum(patch: pytest.MonkeyPatch) -> None:
    """The primary commits what it alone has, or has not yet."""
    patch.setattr(commit, "has_quorum", lambda state, op: True)
    patch.setattr("coordinator.vsr.replica.check_step", lambda before, state: None)


def execute_twice(patch: pytest.MonkeyPatch) -> None:
    """Every tenth entry is handed out twice."""
    real = commit.deliver

    def deliver(state: State) -> None:
        real(state)
        for effect in [e for e in state.effects if isinstance(e, vsr.Commit)]:
            if effect.op % 10 == 0:
                state.emit(effect)

    patch.setattr(
        "coordinator.vsr.replica.SETTLE_RULES",
        tuple(
            deliver if rule is real else rule
            for rule in __import__("coordinator.vsr.replica", fromlist=["x"]).SETTLE_RULES
        ),
    )


def write_without_sync(patch: pytest.MonkeyPatch) -> None:
    """The journal reports records that it only wrote."""

    def write(self: Journal, placed: Any, records: Any) -> None:
        for record, data in zip(placed, records, strict=True):
            self._files[record.segment].write(record.offset, data)

    patch.setattr(Journal, "_write", write)


def forget_the_head(patch: pytest.MonkeyPatch) -> None:
    """A restart overlooks the last entry of the journal."""
    real = Journal._adopt_place

    def adopt(self: Journal, recovered: Any) -> None:
        real(self, recovered)
        if self._index.head_op > 1:
            self._index.remove_after(self._index.head_op - 1)

    patch.setattr(Journal, "_adopt_place", adopt)


def keep_the_first_superblock(patch: pytest.MonkeyPatch) -> None:
    """Views are reported as durable, and never reach the disk."""
    real = SuperblockFile.write_core

    def write(self: SuperblockFile, state: vsr.SuperblockState) -> None:
        if not self.exists:
            real(self, state)

    patch.setattr(SuperblockFile, "write_core", write)


def differ_between_replicas(patch: pytest.MonkeyPatch) -> None:
    """What an entry does depends on which process executes it."""
    real = ChainApplication.execute

    def execute(self: ChainApplication, request: Any, effective: Any) -> Any:
        self.state.digest = bytes([id(self) % 251]) + self.state.digest[1:]
        return real(self, request, effective)

    patch.setattr(ChainApplication, "execute", execute)


def forget_numbers(patch: pytest.MonkeyPatch) -> None:
    """A request that comes twice takes effect twice."""
    real = ChainApplication.execute

    def execute(self: ChainApplication, request: Any, effective: Any) -> Any:
        self.state.replies.pop(request.client, None)
        number = request.number
        object.__setattr__(request, "number", 1)
        effective_now: list[Any] = []
        reply = real(self, request, effective_now)
        object.__setattr__(request, "number", number)
        effective.append((request.client, number))
        return reply

    patch.setattr(ChainApplication, "execute", execute)


def add_wrongly(patch: pytest.MonkeyPatch) -> None:
    """One counter counts one too many, on every replica alike."""
    real = ChainApplication.execute

    def execute(self: ChainApplication, request: Any, effective: Any) -> Any:
        self.state.counters[3] = self.state.counters.get(3, 0) + 1
        return real(self, request, effective)

    patch.setattr(ChainApplication, "execute", execute)


def answer_early(patch: pytest.MonkeyPatch) -> None:
    """A reply goes out when the entry is admitted, not when it is executed."""
    real = Process._admitted

    def admitted(self: Process, effect: vsr.Admitted) -> None:
        batch = list(self._batch)
        real(self, effect)
        for request in batch:
            self._reply(request.client, EarlyAnswer(request.number, None, effect.op))

    patch.setattr(Process, "_admitted", admitted)


def read_without_asking(patch: pytest.MonkeyPatch) -> None:
    """A primary grants reads without asking whether it still is one."""

    def finish(state: State) -> None:
        for token in state.reads.running:
            state.emit(vsr.ReadIndexGranted(token, state.reads.index_op))
        state.reads.running = []

    patch.setattr(reads, "finish_round", finish)


def never_repeat(patch: pytest.MonkeyPatch) -> None:
    """A primary sends each entry once; what was lost stays lost."""
    table = __import__("coordinator.vsr.replica", fromlist=["x"]).TIMEOUT_HANDLERS
    for name, handler in list(table.items()):
        if handler is normal.resend_prepares:
            patch.setitem(table, name, lambda state: None)


def apply_duplicates(patch: pytest.MonkeyPatch) -> None:
    """The real sessions machine takes a duplicate for a new request."""
    real = SessionsMachine.check_header

    def check(self: SessionsMachine, request: Any) -> Any:
        verdict = real(self, request)
        return HeaderVerdict.APPLY if verdict is HeaderVerdict.DUPLICATE else verdict

    patch.setattr(SessionsMachine, "check_header", check)
