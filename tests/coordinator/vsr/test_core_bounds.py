"""Decisions of the core by themselves: what the tail of the log takes up, what counts how long."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from coordinator.vsr import Discarded
from coordinator.vsr.acknowledge import on_discarded
from coordinator.vsr.errors import CallerError, InvariantViolation
from coordinator.vsr.log import LogEntry, LogTail
from coordinator.vsr.message_guards import lags_behind
from coordinator.vsr.messages import DoViewChangeMessage, RequestAdmissionMessage
from coordinator.vsr.pre_votes import PRE_VOTE_TICKS, targets
from coordinator.vsr.state import PreVote, ReplicaState
from coordinator.vsr.view_change import VOTE_TICKS, counted_votes, note
from testkit.journal_builders import chain
from tests.coordinator.vsr.cluster_harness import CLUSTER_ID, configuration
from viewstamp.format.prepare import SealedHeader, seal
from viewstamp.limits import PIPELINE_PREPARES_MAX

OWN, PEER = 0, 1


def headers(count: int) -> list[SealedHeader]:
    """Return the headers of a log of view 0."""
    return [prepare.header for prepare in chain(count)]


def entry(header: SealedHeader) -> LogEntry:
    """Return an entry that is not durable yet."""
    return LogEntry(header, None, header.view)


def replica_state() -> ReplicaState:
    """Return the state of one of three replicas that has just begun."""
    return ReplicaState(configuration(OWN, 3), seal, None)


@pytest.mark.parametrize(
    ("changed", "rule"),
    [
        ({"op": 4}, "ops have no gap"),
        ({"op": 2}, "ops have no gap"),
        ({"parent": b"o" * 16}, "entries chain by parent"),
        ({"view": 4}, "views of entries never go back"),
        ({"feature_level": 1}, "the feature level never falls"),
    ],
)
def test_what_does_not_continue_the_log_is_a_bug(changed: dict[str, Any], rule: str) -> None:
    """A head with another op, parent, or an older view or feature level stops the replica."""
    first, second, third = headers(3)
    tail = LogTail()
    tail.append(entry(first))
    tail.append(entry(replace(second, view=5, feature_level=2)))
    whole = replace(third, parent=second.checksum, view=5, feature_level=2)
    with pytest.raises(InvariantViolation, match=rule):
        tail.append(entry(replace(whole, **changed)))
    tail.append(entry(whole))
    assert (tail.op, tail.head) == (3, whole)


def test_what_a_discarded_entry_told_is_forgotten() -> None:
    """The parent of a discarded entry says nothing of the damaged head that is left."""
    first, second, third = headers(3)
    tail = LogTail()
    tail.inherit((first, third), 0)
    tail.inherit_faults((2,), {2: second.checksum})
    assert tail.checksum_of(2) == second.checksum
    tail.discard_after(2)
    assert (tail.op, tail.head, tail.faulty) == (2, None, {2})
    assert tail.checksum_of(2) is None


def test_discards_are_reported_in_order() -> None:
    """A driver that reports the second of two discards first has a bug."""
    state = replica_state()
    state.log.discards[:] = [4, 3]
    with pytest.raises(CallerError, match="in their order"):
        on_discarded(state, Discarded(3))
    on_discarded(state, Discarded(4))
    with pytest.raises(CallerError, match="in their order"):
        on_discarded(state, Discarded(4))
    on_discarded(state, Discarded(3))
    assert state.log.discards == []


def test_a_pre_vote_counts_for_a_time() -> None:
    """The pre-vote of a peer expires after its last tick; the own one is always in force."""
    state = replica_state()
    state.pre_votes = {OWN: PreVote(1, 0), PEER: PreVote(2, 0)}
    state.now_ticks = PRE_VOTE_TICKS
    assert targets(state) == [1, 2]
    state.now_ticks += 1
    assert targets(state) == [1]


def test_a_vote_counts_for_a_time() -> None:
    """The vote of a peer expires after its last tick, and counts again once it is repeated."""
    state = replica_state()
    own, theirs = (
        DoViewChangeMessage(CLUSTER_ID, replica, 1, 0, 1, 1, (), (), False)
        for replica in (OWN, PEER)
    )
    note(state, own)
    note(state, theirs)
    state.now_ticks = VOTE_TICKS
    assert counted_votes(state) == [own, theirs]
    state.now_ticks += 1
    assert counted_votes(state) == [own]
    note(state, theirs)
    assert counted_votes(state) == [own, theirs]


@pytest.mark.parametrize(("lag_ops", "lags"), [(0, False), (8, False), (9, True)])
def test_a_newcomer_within_the_pipeline_may_be_admitted(lag_ops: int, lags: bool) -> None:
    """A newcomer asks again until it lacks no more than a primary may have under way."""
    assert PIPELINE_PREPARES_MAX == 8
    state = replica_state()
    state.commit_max = 20
    asked = RequestAdmissionMessage(CLUSTER_ID, PEER, bytes(16), 20 - lag_ops)
    assert lags_behind(state, asked) is lags
