"""Notices: who should hear soon that its place has changed.

They are hints for the primary, and no part of what replicas agree on. A command that is taken back
may leave one, and one that is lost costs its member the time to its next sign of life.
"""

from __future__ import annotations

from collections.abc import Iterable

from services.consumer_groups.model import GroupsState
from viewstamp.api.domain.v1.domain_service_pb2 import Notice


def take_notices(state: GroupsState) -> Iterable[Notice]:
    """Return one notice for each place that has changed since they were taken last."""
    if not state.notices:
        return ()
    told, state.notices = state.notices, {}
    return [Notice(session_id=session_id, group_id=group_id) for group_id, session_id in told]
