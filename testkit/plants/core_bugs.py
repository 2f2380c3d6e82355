"""Bugs of the core, the journal and the clock of the cluster, each for one checker to find."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from coordinator import vsr
from coordinator.journal import Journal, plan
from coordinator.replica.cluster_clock import ClusterClock
from coordinator.replica.superblock_file import SuperblockFile
from coordinator.vsr import (
    backup_reads,
    bootstrap,
    commit,
    message_rules,
    normal,
    reads,
    replica,
    view_change,
)
from coordinator.vsr.state import ReplicaState
from testkit.memory_storage import Inode, MemoryStorage

Patch = pytest.MonkeyPatch


def commit_without_quorum(patch: Patch) -> None:
    """The primary commits an entry before any other replica has it."""
    patch.setattr(commit, "has_quorum", lambda state, op: True)
    patch.setattr(replica, "check_step", lambda before, state: None)


def let_standbys_vouch(patch: Patch) -> None:
    """Standbys acknowledge entries, primaries count that, and the checks against it are removed."""
    patch.setattr(ReplicaState, "is_voter_in", lambda self, view: True)
    patch.setattr(message_rules, "ANY_RULES", message_rules.ANY_RULES[:-1])
    patch.setattr(replica, "check_step", lambda before, state: None)


def write_without_sync(patch: Patch) -> None:
    """The journal reports records as durable that it has only written."""

    def write(self: Journal, placed: Any, records: Any) -> None:
        for record, data in zip(placed, records, strict=True):
            self._segments[record.segment].write(record.offset, data)

    patch.setattr(Journal, "_write", write)


def disks_lie(patch: Patch) -> None:
    """A sync returns, and nothing was written."""

    def sync(self: MemoryStorage, path: str, inode: Inode) -> None:
        self.step(f"sync {path}")

    patch.setattr(MemoryStorage, "sync_inode", sync)


def forget_the_head(patch: Patch) -> None:
    """A restart overlooks the last entry of the journal."""
    real = Journal.open.__func__  # type: ignore[attr-defined]

    def opened(cls: Any, *arguments: Any, **named: Any) -> Any:
        journal, recovery = real(cls, *arguments, **named)
        if journal.index.head_op > 1:
            journal.index.remove_after(journal.index.head_op - 1)
        return journal, recovery

    patch.setattr(Journal, "open", classmethod(opened))


def keep_the_first_superblock(patch: Patch) -> None:
    """The replica reports views as durable that never reach the disk."""
    real = SuperblockFile.write_core

    def write(self: SuperblockFile, state: vsr.CoreState, journal_sequence: int = 0) -> None:
        if not self.exists:
            real(self, state, journal_sequence)

    patch.setattr(SuperblockFile, "write_core", write)


def sequence_anew(patch: Patch) -> None:
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


def discard_too_much(patch: Patch) -> None:
    """A replica discards the entries that a chosen log lacks, and the entry before them."""
    real = ReplicaState.discard_after

    def discard(self: ReplicaState, op: int) -> None:
        real(self, op)
        self.effects[-1] = vsr.DiscardAfter(max(1, op - 3))

    patch.setattr(ReplicaState, "discard_after", discard)


def read_without_asking(patch: Patch) -> None:
    """A primary grants reads without asking whether it still is the primary."""

    def finish(state: ReplicaState) -> None:
        for token in state.reads.running:
            state.emit(vsr.ReadIndexGranted(token, state.reads.index_op))
        state.reads.running = {}
        backup_reads.answer(state)

    patch.setattr(reads, "finish_round", finish)


def read_behind_the_primary(patch: Patch) -> None:
    """A backup serves reads from the commit point that it knows, without asking the primary."""

    def ask(state: ReplicaState) -> None:
        for token in state.reads.running:
            state.emit(vsr.ReadIndexGranted(token, state.commit_max))
        state.reads.running = {}

    patch.setattr(backup_reads, "ask", ask)


def never_repeat(patch: Patch) -> None:
    """A primary sends each entry once, nobody asks for lost entries, and nobody suspects it."""
    for name in list(replica.TIMEOUT_HANDLERS):
        if replica.TIMEOUT_HANDLERS[name] not in (
            bootstrap.ask_initial_members,
            normal.send_heartbeat,
        ):
            patch.setitem(replica.TIMEOUT_HANDLERS, name, lambda state: None)


def vote_with_a_hole(patch: Patch) -> None:
    """A vote leaves out the entry before the head."""
    real = view_change.own_vote

    def own_vote(state: ReplicaState) -> Any:
        vote = real(state)
        left_out = vote.head_op - 1
        headers = tuple(header for header in vote.headers if header.op != left_out)
        return replace(vote, headers=headers)

    patch.setattr(view_change, "own_vote", own_vote)


def start_with_any_superblock(patch: Patch) -> None:
    """A start does not ask which superblock the records of the journal name."""
    patch.setattr(plan, "check_superblock_is_newest", lambda *_: None)


def stamp_with_the_own_clock(patch: Patch) -> None:
    """A primary gives entries the time of its own clock."""
    patch.setattr(ClusterClock, "stamp_us", lambda self: self.own.now_us())
