"""Pending proposals: all follow from the state, so a new primary can ask for them again."""

from __future__ import annotations

from collections.abc import Iterable

from services.consumer_groups.chores import propose_sweep
from services.consumer_groups.membership import (
    is_assign_pending,
    propose_assign,
    propose_revocation,
)
from services.consumer_groups.model import GroupsState
from services.runtime.domain import Call
from viewstamp import limits
from viewstamp.api.domain.v1 import domain_service_pb2


def proposals(state: GroupsState) -> Iterable[domain_service_pb2.Proposal]:
    """Return an Assign for every group behind, and a CompleteRevocation for every deadline.

    And a Sweep if chores are left. If one is under way, the primary drops this one, or has it
    follow instead of the next; then the turn of chores begins with the lowest again.
    """
    call = Call(
        revision=0,
        timestamp=0,
        user_id=limits.SYSTEM_USER_ID,
        credential_revision=0,
        session_id=limits.GATEWAY_SESSION_ID,
        feature_level=0,  # nothing is decided here
    )
    for group_id in state.groups.sorted_keys():
        group = state.groups.rows[group_id]
        if is_assign_pending(group):
            propose_assign(group, call)
        for member in state.members_of(group_id):
            if member.revocation_deadline:
                propose_revocation(member, call)
    if state.chores:
        propose_sweep(call)
    return call.proposals
