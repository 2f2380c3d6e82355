"""What holds after every step; checked after every step, also in production.

An invariant is a name and a predicate, so that a breach names the invariant and the state.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import lt
from typing import NamedTuple

from coordinator.vsr.effects import NOT_ADMITTED, ReplicaStatus
from coordinator.vsr.errors import check
from coordinator.vsr.state import ReplicaState
from viewstamp.limits import PIPELINE_PREPARES_MAX, UNAPPLIED_PREPARES_MAX


class Marks(NamedTuple):
    """How far a replica is at one moment.

    None of these ever goes back, except that a discard takes back `op` and `durable_op`.
    """

    view: int
    log_view: int
    op: int
    durable_op: int
    commit_max: int
    commit_min: int
    applied_op: int
    discard_count: int

    @classmethod
    def of(cls, state: ReplicaState) -> Marks:
        """The marks of `state` now."""
        return cls(
            state.view,
            state.log_view,
            state.log.op,
            state.log.durable_op,
            state.commit_max,
            state.commit_min,
            state.applied_op,
            state.log.discard_count,
        )


def ops_in_order(state: ReplicaState) -> bool:
    """Applied <= handed out <= committed <= logged."""
    return 0 <= state.applied_op <= state.commit_min <= state.commit_max <= state.log.op


def views_in_order(state: ReplicaState) -> bool:
    """A replica holds only the log of a view that it entered."""
    return state.log_view <= state.view


def normal_is_durable(state: ReplicaState) -> bool:
    """A replica in status normal remembers its view after a crash."""
    return state.status is not ReplicaStatus.NORMAL or state.is_installed


def normal_has_applied_inheritance(state: ReplicaState) -> bool:
    """A new primary admits and reads nothing before the inherited log went through every stage."""
    return state.status is not ReplicaStatus.NORMAL or state.applied_op >= state.inherited_op


def unapplied_is_bounded(state: ReplicaState) -> bool:
    """The stages never hold more entries than they may."""
    return state.commit_min - state.applied_op <= UNAPPLIED_PREPARES_MAX


def pipeline_is_bounded(state: ReplicaState) -> bool:
    """A primary has at most a pipeline of uncommitted entries; a new primary relies on it."""
    in_flight = state.log.op - state.commit_max
    leads = state.is_primary and state.acts_in_view
    return not leads or in_flight <= PIPELINE_PREPARES_MAX


def alone_commits_what_is_durable(state: ReplicaState) -> bool:
    """With one replica, the quorum is its disk."""
    return not state.is_alone or state.commit_max <= state.log.durable_op


def installed_log_is_whole(state: ReplicaState) -> bool:
    """The disk holds the log that a view began with before it records the log view."""
    return state.log.durable_op >= state.began_op or state.log_view < state.view


def votes_are_durable(state: ReplicaState) -> bool:
    """A replica votes only in a view that its disk records."""
    voted = state.replica in state.votes
    return not voted or (state.durable is not None and state.durable.view == state.view)


def own_acks_are_durable(state: ReplicaState) -> bool:
    """A primary counts its own copy only once it is durable."""
    uncommitted = state.log.above(state.commit_max)
    return all(entry.durable or state.replica not in entry.acks for entry in uncommitted)


def standby_only_follows(state: ReplicaState) -> bool:
    """A standby never leads, votes or pre-votes, and its disk records that it has no vote."""
    if not state.is_standby or state.status is ReplicaStatus.REMOVED:
        return True
    is_admitted = any(
        superblock is not None and superblock.voting_view != NOT_ADMITTED
        for superblock in (state.durable, state.writing)
    )
    return not (state.is_primary or state.votes or state.replica in state.pre_votes or is_admitted)


def voters_alone_are_counted(state: ReplicaState) -> bool:
    """No standby counts in the choice of a view or of its log."""
    if state.is_standby or state.followers == state.others:
        return True
    counted = (*state.votes, *state.pre_votes, *state.initial_members, *state.reads.confirmed_by)
    return set(counted) <= set(state.membership.voters)


INVARIANTS: tuple[Callable[[ReplicaState], bool], ...] = (
    ops_in_order,
    views_in_order,
    normal_is_durable,
    normal_has_applied_inheritance,
    unapplied_is_bounded,
    pipeline_is_bounded,
    alone_commits_what_is_durable,
    installed_log_is_whole,
    votes_are_durable,
    own_acks_are_durable,
    standby_only_follows,
    voters_alone_are_counted,
)


def check_step(before: Marks, state: ReplicaState) -> Marks:
    """Return the marks of `state`; raise InvariantViolation unless the step left it sound.

    `before` are the marks after the previous step.
    """
    after = Marks.of(state)
    for invariant in INVARIANTS:
        # The details are built only for a breach: this runs after every step.
        if not invariant(state):
            check(False, invariant.__name__, (state.status, after, state.durable))
    if any(map(lt, after, before)):
        check_what_went_back(before, after)
    if after.commit_max > before.commit_max:
        check_new_commits(before, state)
    return after


def check_what_went_back(before: Marks, after: Marks) -> None:
    """Check that only a discard shortened the log, and never to below what was committed."""
    marks = zip(Marks._fields, before, after, strict=True)
    went_back = [mark for mark, old, new in marks if new < old]
    if after.discard_count > before.discard_count:
        went_back = [mark for mark in went_back if mark not in ("op", "durable_op")]
        check(after.op >= before.commit_max, "what is committed is never discarded", after)
    for mark in went_back:
        check(False, f"{mark} never goes back", (before, after))


def check_new_commits(before: Marks, state: ReplicaState) -> None:
    """A primary's new commits, beyond those it inherits, are on a replication quorum of disks."""
    if not state.is_primary or state.status is not ReplicaStatus.NORMAL:
        return
    for entry in state.log.above(before.commit_max):
        if entry.header.op <= state.commit_max:
            voters = [each for each in entry.acks if each in state.membership.voters]
            check(
                len(voters) >= state.quorums.replication,
                "a committed entry is durable on a replication quorum",
                (entry.header.op, sorted(entry.acks)),
            )
