"""How long the offsets of a group without members are kept, in plain words."""

from __future__ import annotations

from typing import Any, Final

from testkit.composite.world import Call, CompositeModelState, CompositeRefused, Group
from viewstamp.limits import FEATURE_LEVEL_RETENTION

RETENTION_MS_MIN: Final = 60_000
RETENTION_MS_MAX: Final = 315_360_000_000
_STEP_US: Final = 60_000_000
_US_PER_MS: Final = 1_000
_LOOK_US_MAX: Final = 6 * 3_600_000_000


def retention_ms(world: CompositeModelState, request: Any) -> int:
    """Return the retention to keep; 0 for ever."""
    wanted: int = request.offsets_retention_ms if world.level >= FEATURE_LEVEL_RETENTION else 0
    if wanted and not RETENTION_MS_MIN <= wanted <= RETENTION_MS_MAX:
        raise CompositeRefused("INVALID_OPTION", requested=wanted)
    return wanted


def change_retention(group: Group, wanted_ms: int, call: Call) -> None:
    """Keep offsets for another time; what was kept for ever is kept so long from now on."""
    group.retention_ms = wanted_ms
    if group.members or not wanted_ms:
        group.idle_since = 0
    elif group.idle_since:
        _plan(group, call)
    else:
        begin_retention(group, call)


def note_members(group: Group, call: Call) -> None:
    """Begin the retention of a group that has lost its last member; end it with the first one."""
    if group.members:
        group.idle_since = 0
    elif not group.idle_since:
        begin_retention(group, call)


def note_commit(group: Group, call: Call) -> None:
    """Begin the retention anew with a commit to a group without members, once in a minute."""
    if not group.idle_since or call.timestamp - group.idle_since >= _STEP_US:
        begin_retention(group, call)


def begin_retention(group: Group, call: Call) -> None:
    """Let the offsets of a group without members end after its retention, if it has one."""
    if group.retention_ms:
        group.idle_since = call.timestamp
        _plan(group, call)


def expire_offsets(world: CompositeModelState, request: Any, call: Call) -> dict[str, Any]:
    """Forget the offsets of a group that nobody uses, or look again later."""
    group = next((each for *_, each in world.groups() if each.id == request.group_id), None)
    if group is None or not group.expiry_due or group.expiry_due != request.expiry_due:
        return {}
    if group.idle_since and _end(group) > call.timestamp:
        if group.expiry_due != _end(group):
            world.turns.add("offsets kept for longer")
        group.expiry_due = min(_end(group), call.timestamp + _LOOK_US_MAX)
        return {}
    if group.idle_since:
        world.turns |= {"offsets expired"} if group.offsets else set()
        change_offsets(world, group, {}, call)
    elif group.members:
        world.turns.add("offsets kept for members")
    group.idle_since = group.expiry_due = 0
    return {}


def change_offsets(
    world: CompositeModelState, group: Group, offsets: dict[int, int], call: Call
) -> None:
    """Let a group have these offsets, and note when they changed last."""
    if offsets != group.offsets and world.has_guards:
        group.offsets_revision = call.revision
    group.offsets = offsets


def _plan(group: Group, call: Call) -> None:
    due = min(_end(group), call.timestamp + _LOOK_US_MAX)
    if not group.expiry_due or due < group.expiry_due:
        group.expiry_due = due


def _end(group: Group) -> int:
    return group.idle_since + group.retention_ms * _US_PER_MS + _STEP_US
