"""Pending proposals: all follow from the state, so a new primary can ask for them again."""

from __future__ import annotations

from collections.abc import Iterable

from services.consumer_groups.chores import propose_sweep
from services.consumer_groups.membership import (
    is_assign_pending,
    propose_assign,
    propose_expiry,
    propose_revocation,
)
from services.consumer_groups.model import GroupsState
from services.consumer_groups.retention import propose_expiry as propose_expiry_of_offsets
from services.runtime.domain import Call
from viewstamp import limits
from viewstamp.api.domain.v1 import domain_service_pb2


def silent(
    state: GroupsState, tenure: domain_service_pb2.Tenure
) -> Iterable[domain_service_pb2.Proposal]:
    """Return an ExpireMember for some of the members that were silent for too long."""
    call = _call()
    for member in state.liveness.silent(state.members, tenure):
        propose_expiry(member, call)
    return call.proposals


def proposals(state: GroupsState) -> Iterable[domain_service_pb2.Proposal]:
    """Return an Assign for every group behind, and what completes or ends at every deadline.

    And a Sweep if chores are left. If one is under way, the primary drops this one, or has it
    follow instead of the next; then the turn of chores begins with the lowest again.
    """
    call = _call()
    for group_id in state.groups.sorted_keys():
        group = state.groups.rows[group_id]
        if is_assign_pending(group):
            propose_assign(group, call)
        if group.expiry_due:
            propose_expiry_of_offsets(group, call)
        for member in state.members_of(group_id):
            if member.revocation_deadline:
                propose_revocation(member, call)
            if member.is_away:
                propose_expiry(member, call)
    if state.chores:
        propose_sweep(call)
    return call.proposals


def _call() -> Call:
    """Return what collects proposals; nothing is decided here."""
    return Call(
        revision=0,
        timestamp=0,
        user_id=limits.SYSTEM_USER_ID,
        credential_revision=0,
        session_id=limits.GATEWAY_SESSION_ID,
        feature_level=0,
    )
