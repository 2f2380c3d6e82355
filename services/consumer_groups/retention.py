"""How long offsets are kept of a group that nobody uses.

A group may have a retention. Once it has had neither members nor commits for so long, an
ExpireOffsets forgets its offsets. Of these commands the one that the group names counts: whoever
uses the group again lets it come, and then it asks for its next turn. Time is log time.
"""

from __future__ import annotations

from services.consumer_groups.model import US_PER_MS, Group, GroupsState
from services.runtime.domain import Call
from viewstamp.api.consumer_groups.v1 import consumer_groups_service_pb2 as api
from viewstamp.limits import OFFSETS_IDLE_STEP_US, OFFSETS_LOOK_US_MAX
from viewstamp.routing import methods_of_file

EXPIRE_OFFSETS_CODE = next(
    method.code for method in methods_of_file(api.DESCRIPTOR) if method.name == "ExpireOffsets"
)
# Rows that a group may have, and has not, cost this many at one.
_LOOKED_AT_PER_ROW = 16


def idle_now(group: Group, call: Call) -> Group:
    """Return a group without members as it is when its retention begins, and have it end."""
    if not group.offsets_retention_ms:
        return group
    return _asked(group._replace(idle_since=call.timestamp), call)


def in_use(group: Group) -> Group:
    """Return a group with members: its offsets need not end."""
    return group._replace(idle_since=0) if group.idle_since else group


def note_commit(state: GroupsState, group: Group, call: Call) -> None:
    """Begin the retention of a group without members anew, if it was noted long enough ago.

    Each commit would else change the group, and be shown to whoever watches it.
    """
    is_news = not group.idle_since or call.timestamp >= group.idle_since + OFFSETS_IDLE_STEP_US
    if group.offsets_retention_ms and is_news:
        state.groups.put(group.id, idle_now(group, call))


def note_offsets(state: GroupsState, group: Group, call: Call) -> None:
    """Note that this command has changed offsets of a group."""
    if call.has_guards:
        present = state.groups.rows[group.id]
        state.groups.put(group.id, with_offsets(present, call.revision, call))


def with_offsets(group: Group, revision: int, call: Call) -> Group:
    """Return a group whose offsets a command has changed, if the level in force keeps that."""
    if not call.has_guards:
        return group
    return group._replace(offsets_revision=max(group.offsets_revision, revision))


def with_retention(group: Group, retention_ms: int, has_members: bool, call: Call) -> Group:
    """Return a group with another retention; what was kept for ever is kept so long from now on."""
    changed = group._replace(offsets_retention_ms=retention_ms)
    if has_members or not retention_ms:
        return in_use(changed)
    return _asked(changed, call) if group.idle_since else idle_now(changed, call)


def expire_offsets(state: GroupsState, request: api.ExpireOffsetsRequest, call: Call) -> bytes:
    """Forget the offsets of an idle group; a no-op if it was used, or another time is in force."""
    group = state.groups.rows.get(request.group_id)
    if group is None or not group.expiry_due or group.expiry_due != request.expiry_due:
        return b""
    end = _end(group) if group.idle_since else 0
    if end > call.timestamp:
        group = group._replace(expiry_due=min(end, call.timestamp + OFFSETS_LOOK_US_MAX))
        propose_expiry(group, call)
    elif end and not call.afford(_rows_of_offsets(state, group)):
        propose_expiry(group, call, put_off_revision=call.revision)
        return b""
    else:
        if end and state.drop_offsets(group):
            group = with_offsets(group, call.revision, call)
        group = group._replace(idle_since=0, expiry_due=0)
    state.groups.put(group.id, group)
    return b""


def propose_expiry(group: Group, call: Call, put_off_revision: int = 0) -> None:
    """Ask that the offsets of a group are looked at when their time may have come."""
    request = api.ExpireOffsetsRequest(
        group_id=group.id, expiry_due=group.expiry_due, put_off_revision=put_off_revision
    )
    call.propose(EXPIRE_OFFSETS_CODE, request, due=group.expiry_due)


def _asked(group: Group, call: Call) -> Group:
    """Return a group whose offsets are looked at in time; ask for it unless that is so already."""
    due = min(_end(group), call.timestamp + OFFSETS_LOOK_US_MAX)
    if 0 < group.expiry_due <= due:
        return group
    asked = group._replace(expiry_due=due)
    propose_expiry(asked, call)
    return asked


def _rows_of_offsets(state: GroupsState, group: Group) -> int:
    """Return what it costs to forget all offsets of a group."""
    return state.offset_rows_count(group) + state.offset_rows_max(group) // _LOOKED_AT_PER_ROW


def _end(group: Group) -> int:
    """Return when the retention is over, a step later than it was noted to begin."""
    return group.idle_since + group.offsets_retention_ms * US_PER_MS + OFFSETS_IDLE_STEP_US
