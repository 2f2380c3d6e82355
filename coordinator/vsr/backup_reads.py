"""Linearizable reads of a backup: the primary says how far it must have applied the log.

All waiting reads share one question. Reads that arrive while it is open wait for the next one,
because its index could be older than what their callers have seen. The question joins a round of
the primary that begins after the question arrived. So the index is a commit point of a moment when
the read had been asked for and the primary was still primary.

Only an answer to the open question counts. The token tells it from earlier questions of this boot,
the nonce from those of earlier boots: a delayed answer would name an op that is too old.
"""

from __future__ import annotations

from coordinator.vsr.effects import ReadIndexGranted
from coordinator.vsr.messages import ReadIndexReplyMessage, ReadIndexRequestMessage
from coordinator.vsr.normal import learn_commit
from coordinator.vsr.state import ReplicaState
from coordinator.vsr.timeouts import TimeoutName


def settle(state: ReplicaState) -> None:
    """Settle rule of a backup: ask for the waiting reads, unless a question is open."""
    reads = state.reads
    if reads.waiting and not reads.running:
        reads.number += 1
        reads.running, reads.waiting = reads.waiting, {}
        ask(state)


def ask(state: ReplicaState) -> None:
    """Backup: ask the primary, and again after a while."""
    question = ReadIndexRequestMessage(
        state.configuration.cluster_id,
        state.replica,
        state.view,
        state.boot_nonce,
        state.reads.number,
    )
    state.send(state.primary, question)
    state.timeouts.arm(TimeoutName.READ_INDEX, state.now_ticks)


def on_read_index_request(state: ReplicaState, message: ReadIndexRequestMessage) -> None:
    """Primary: let the backup join the next round, unless the running round has this question."""
    reads = state.reads
    if reads.backups_running.get(message.from_replica) != message:
        reads.backups_waiting[message.from_replica] = message


def answer(state: ReplicaState) -> None:
    """Primary: tell the index to the backups that joined the finished round."""
    reads = state.reads
    for replica, question in reads.backups_running.items():
        reply = ReadIndexReplyMessage(
            state.configuration.cluster_id,
            state.replica,
            state.view,
            question.nonce,
            question.token,
            reads.index_op,
        )
        state.send(replica, reply)
    reads.backups_running = {}


def on_read_index_reply(state: ReplicaState, message: ReadIndexReplyMessage) -> None:
    """Backup: grant the index to the reads that it was asked for."""
    reads = state.reads
    learn_commit(state, message.op)
    for token in reads.running:
        state.emit(ReadIndexGranted(token, message.op))
    reads.running = {}
    state.timeouts.stop(TimeoutName.READ_INDEX)
