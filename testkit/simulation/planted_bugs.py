"""One bug for each checker, which it alone finds: every checker can fail.

A bug is put in place of a function of the core, the journal or the stages, while a seed runs.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import count
from typing import Any, Final

import pytest

from coordinator import vsr
from coordinator.journal import Journal
from coordinator.replica.data_directory import SuperblockFile
from coordinator.vsr import (
    backup_reads,
    bootstrap,
    commit,
    message_guards,
    normal,
    reads,
    replica,
    view_change,
)
from coordinator.vsr.state import ReplicaState
from testkit.simulation.chain import ChainApplication
from testkit.simulation.clients import Answer
from testkit.simulation.options import Options
from testkit.simulation.plant import Plant
from testkit.simulation.process import HANDLERS, Process
from viewstamp.limits import FEATURE_LEVEL_MAX


def commit_without_quorum(patch: pytest.MonkeyPatch) -> None:
    """The primary commits an entry before any other replica has it."""
    patch.setattr(commit, "has_quorum", lambda state, op: True)
    patch.setattr(replica, "check_step", lambda before, state: None)


def let_standbys_vouch(patch: pytest.MonkeyPatch) -> None:
    """Standbys acknowledge entries, primaries count that, and the checks against it are removed."""
    patch.setattr(ReplicaState, "is_voter_in", lambda self, view: True)
    patch.setattr(message_guards, "ANY_RULES", message_guards.ANY_RULES[:2])
    patch.setattr(replica, "check_step", lambda before, state: None)


def hand_over_twice(patch: pytest.MonkeyPatch) -> None:
    """The stages get every tenth entry twice."""

    def committed(self: Process, effect: vsr.Commit) -> None:
        times = 2 if effect.op % 10 == 0 else 1
        self._commits.extend([effect] * times)
        self._hand_over()

    patch.setitem(HANDLERS, vsr.Commit, committed)


def write_without_sync(patch: pytest.MonkeyPatch) -> None:
    """The journal reports records as durable that it has only written."""

    def write(self: Journal, placed: Any, records: Any) -> None:
        for record, data in zip(placed, records, strict=True):
            self._segments[record.segment].write(record.offset, data)

    patch.setattr(Journal, "_write", write)


def forget_the_head(patch: pytest.MonkeyPatch) -> None:
    """A restart overlooks the last entry of the journal."""
    real = Journal.open.__func__  # type: ignore[attr-defined]

    def opened(cls: Any, *arguments: Any, **named: Any) -> Any:
        journal, recovery = real(cls, *arguments, **named)
        if journal.index.head_op > 1:
            journal.index.remove_after(journal.index.head_op - 1)
        return journal, recovery

    patch.setattr(Journal, "open", classmethod(opened))


def keep_the_first_superblock(patch: pytest.MonkeyPatch) -> None:
    """The replica reports views as durable that never reach the disk."""
    real = SuperblockFile.write_core

    def write(self: SuperblockFile, state: vsr.CoreState) -> None:
        if not self.exists:
            real(self, state)

    patch.setattr(SuperblockFile, "write_core", write)


def sequence_anew(patch: pytest.MonkeyPatch) -> None:
    """A primary that sends an entry again changes it."""
    real = normal.send_prepare

    def send(state: ReplicaState, entry: Any, to_replicas: tuple[int, ...]) -> None:
        header = entry.header
        if header.op % 7 == 0 and state.log.op > header.op:
            again = state.seal(
                parent=header.parent,
                cluster_id=header.cluster_id,
                view=header.view,
                op=header.op,
                commit=header.commit,
                first_revision=header.first_revision,
                command_count=header.command_count,
                feature_level=header.feature_level,
                timestamp=header.timestamp + 1,
                body=entry.prepare.body,
            )
            entry = replace(entry, prepare=again)
        real(state, entry, to_replicas)

    patch.setattr(normal, "send_prepare", send)


def discard_too_much(patch: pytest.MonkeyPatch) -> None:
    """A replica discards the entries that a chosen log lacks, and the entry before them."""
    real = ReplicaState.discard_after

    def discard(self: ReplicaState, op: int) -> None:
        real(self, op)
        self.effects[-1] = vsr.DiscardAfter(max(1, op - 3))

    patch.setattr(ReplicaState, "discard_after", discard)


def differ_between_processes(patch: pytest.MonkeyPatch) -> None:
    """The effect of an entry depends on the process that executes it."""
    real, serials = ChainApplication.__init__, count()

    def begin(self: ChainApplication, random: Any, state: bytes | None = None) -> None:
        real(self, random, state)
        self.state.digest = bytes([next(serials) % 251]) + self.state.digest[1:]

    patch.setattr(ChainApplication, "__init__", begin)


def forget_numbers(patch: pytest.MonkeyPatch) -> None:
    """A request that arrives twice takes effect twice."""
    real = ChainApplication.execute

    def execute(self: ChainApplication, request: Any, effective: Any) -> Any:
        self.state.replies.pop(request.client, None)
        done: list[Any] = []
        reply = real(self, replace(request, number=1), done)
        effective.append(request.id)
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
    """A reply leaves as soon as the entry is admitted."""
    real = Process.admitted

    def admitted(self: Process, effect: vsr.Admitted) -> None:
        batch = list(self._batch)
        real(self, effect)
        for request in batch:
            self._reply(request.client, Answer(request.number, None, effect.op))

    patch.setitem(HANDLERS, vsr.Admitted, admitted)
    patch.setattr("testkit.simulation.chain.ChainModel.wrong_reply", lambda *_: None)


def read_without_asking(patch: pytest.MonkeyPatch) -> None:
    """A primary grants reads without asking whether it still is the primary."""

    def finish(state: ReplicaState) -> None:
        for token in state.reads.running:
            state.emit(vsr.ReadIndexGranted(token, state.reads.index_op))
        state.reads.running = {}
        backup_reads.answer(state)

    patch.setattr(reads, "finish_round", finish)


def read_behind_the_primary(patch: pytest.MonkeyPatch) -> None:
    """A backup serves reads from the commit point that it knows, without asking the primary."""

    def ask(state: ReplicaState) -> None:
        for token in state.reads.running:
            state.emit(vsr.ReadIndexGranted(token, state.commit_max))
        state.reads.running = {}

    patch.setattr(backup_reads, "ask", ask)


def never_repeat(patch: pytest.MonkeyPatch) -> None:
    """A primary sends each entry once, nobody asks for lost entries, and nobody suspects it."""
    for name in list(replica.TIMEOUT_HANDLERS):
        if replica.TIMEOUT_HANDLERS[name] not in (
            bootstrap.ask_initial_members,
            normal.send_heartbeat,
        ):
            patch.setitem(replica.TIMEOUT_HANDLERS, name, lambda state: None)


def differ_in_snapshots(patch: pytest.MonkeyPatch) -> None:
    """The content of a snapshot depends on the process that makes it."""
    real, serials = ChainApplication.save, count()
    patch.setattr(ChainApplication, "save", lambda self: real(self) + b" " * (next(serials) % 97))


def lead_at_the_level_of_the_build(patch: pytest.MonkeyPatch) -> None:
    """A primary gives entries the highest level that its build knows, decided or not."""
    patch.setattr(Process, "feature_level", FEATURE_LEVEL_MAX)


def has_chain(options: Options) -> bool:
    """The seeds with the compact application, which some bugs are planted in."""
    return options.application == "chain"


def has_snapshots(options: Options) -> bool:
    """The seeds that cut any."""
    return options.snapshot_ops > 0


def has_standbys(options: Options) -> bool:
    """The seeds with replicas that only follow."""
    return options.standby_count > 0


def vote_with_a_hole(patch: pytest.MonkeyPatch) -> None:
    """A vote leaves out the entry before the head."""
    real = view_change.own_vote

    def own_vote(state: ReplicaState) -> Any:
        vote = real(state)
        left_out = vote.head_op - 1
        headers = tuple(header for header in vote.headers if header.op != left_out)
        return replace(vote, headers=headers)

    patch.setattr(view_change, "own_vote", own_vote)


PLANTS: Final = (
    Plant("OneHistory", commit_without_quorum, seed=1),
    Plant("ExecutedInOrder", hand_over_twice, seed=1),
    Plant("CommittedOnQuorum", commit_without_quorum, seed=1),
    Plant("CommittedOnQuorum", let_standbys_vouch, seed=4, where=has_standbys),
    Plant("StandbysOnlyFollow", let_standbys_vouch, seed=4, where=has_standbys),
    Plant("DurableIsDurable", write_without_sync, seed=1),
    Plant("RestartKeeps", forget_the_head, seed=1),
    Plant("ViewsMonotonic", keep_the_first_superblock, seed=1),
    Plant("OneLogPerView", sequence_anew, seed=1),
    Plant("LogsAreWhole", vote_with_a_hole, seed=1),
    Plant("NothingCommittedDiscarded", discard_too_much, seed=1),
    Plant("LevelsAscend", lead_at_the_level_of_the_build, seed=1),
    Plant("DigestsEqual", differ_between_processes, where=has_chain),
    Plant("ExactlyOnce", forget_numbers, where=has_chain),
    Plant("RepliesAreTheModels", add_wrongly, where=has_chain),
    Plant("AcknowledgedIsKept", answer_early, seed=1),
    Plant("ReadsAreLinearizable", read_without_asking, seed=137, where=has_chain),
    Plant("ReadsAreLinearizable", read_behind_the_primary, where=has_chain),
    Plant("Liveness", never_repeat, seed=1),
    Plant("SnapshotsAgree", differ_in_snapshots, seed=4, where=has_snapshots),
)
