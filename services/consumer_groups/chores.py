"""The work that effects leave to do, and how it is done in steps.

Another stage has decided an effect, which may reach far: a session with thousands of memberships, a
topic with thousands of groups. Its handler continues as long as the allowance of its prepare lasts.
The rest becomes a *chore*, a row of the state, which internal Sweep commands work off in bounded
steps.

Meanwhile nothing that should be gone may show:

- Groups of a deleted topic cannot be named, since streams resolves the topic first.
- An ended session sends nothing. Its places look as before, as if it had ended later.
- Deleted partitions are cut off wherever partitions are listed (`GroupsState.kept_partitions`). A
  partition created again under the number of a deleted one is listed once its group has a new
  target.

There is one chore for each session or topic, which bounds their number. They take turns: a Sweep
says which chore came first, and the next begins behind it, so that topics which change without end
keep nothing waiting for ever. The primary has one Sweep under way at a time (`one_at_a_time`),
since each asks for the next. Chores about different things may be done in any order; a deleted
topic replaces its other chores.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeAlias

from services.consumer_groups.membership import (
    end_membership,
    raise_group_epoch,
    with_partitions,
)
from services.consumer_groups.model import Chore, Group, GroupsState, Member
from services.consumer_groups.retention import with_offsets
from services.runtime.cost import Allowance
from services.runtime.domain import Call
from viewstamp import limits
from viewstamp.api.consumer_groups.v1 import consumer_groups_pb2 as entities
from viewstamp.api.consumer_groups.v1 import consumer_groups_service_pb2 as api
from viewstamp.routing import methods_of_file

SWEEP_CODE: Final = next(m.code for m in methods_of_file(api.DESCRIPTOR) if m.name == "Sweep")

ChoreKey: TypeAlias = tuple[int, int, int]
_BEFORE_ALL: Final = (0, 0, 0)

# The cost of steps, in rows: to end a membership, to remove a member of a removed group, to remove
# or change a group, to cut a member's partitions; partitions and rows sorted for one more.
# Partitions that are only copied, as those that a cut leaves, are cheaper.
_ROWS_PER_MEMBERSHIP: Final = 12
_ROWS_PER_REMOVED_MEMBER: Final = 4
_ROWS_PER_GROUP: Final = 8
_ROWS_PER_CUT_MEMBER: Final = 4
_PARTITIONS_PER_ROW: Final = 16
_COPIED_PER_ROW: Final = 128
_SORTED_PER_ROW: Final = 16


def session_over(state: GroupsState, session_id: int, call: Call) -> None:
    """End the memberships of a session, as far as the allowance lasts."""
    if session_id in state.session_groups:
        _begin(state, Chore(entities.CHORE_KIND_SESSION, session_id, 0, call.revision), call)


def user_gone(state: GroupsState, user_id: int, call: Call) -> None:
    """End a user's memberships in the present sessions, as far as the allowance lasts.

    These sessions end with the user; after a user is activated again, new sessions are others.
    """
    for session_id in state.sessions_of_user(user_id):
        user_gone_from(state, session_id, user_id, call)


def user_gone_from(state: GroupsState, session_id: int, user_id: int, call: Call) -> None:
    """End a user's memberships in one session, as far as the allowance lasts."""
    _begin(state, Chore(entities.CHORE_KIND_USER, session_id, user_id, call.revision), call)


def topic_gone(state: GroupsState, stream_id: int, topic_id: int, call: Call) -> None:
    """Remove the groups of a topic, as far as the allowance lasts."""
    if (stream_id, topic_id) not in state.topic_groups:
        return
    is_asked = bool(state.chores)
    outdated = (entities.CHORE_KIND_PARTITIONS, stream_id, topic_id)
    if outdated in state.chores:
        state.chores.delete(outdated)
    chore = Chore(entities.CHORE_KIND_TOPIC, stream_id, topic_id, call.revision)
    _begin(state, chore, call, is_asked)


def partitions_changed(
    state: GroupsState, stream_id: int, topic_id: int, partitions_count: int, call: Call
) -> None:
    """Let the topic's groups lose deleted partitions, as far as the allowance lasts."""
    if (stream_id, topic_id) not in state.topic_groups:
        return
    kind = entities.CHORE_KIND_PARTITIONS
    chore = state.chores.rows.get((kind, stream_id, topic_id))
    if chore is None:
        count = partitions_count
        chore = Chore(kind, stream_id, topic_id, call.revision, count, count, changes=1)
        _begin(state, chore, call)
        return
    # Groups that are done are visited again: losing too much is safe, since a target follows. The
    # others come first, or they would never be reached while the changes go on.
    united = chore._replace(
        revision=call.revision,
        lowest_count=min(chore.lowest_count, partitions_count),
        partitions_count=partitions_count,
        changes=chore.changes + 1,
        has_next_round=chore.has_next_round or chore.done_group_id > 0,
    )
    state.chores.put(united.key, united)


def sweep(state: GroupsState, request: api.SweepRequest, call: Call) -> bytes:
    """Work off some chores, and ask for the next step if more are left.

    Several in one prepare share the allowance of internal commands; beyond it, they ask again.
    """
    after = (request.after_kind, request.after_first_id, request.after_second_id)
    if not call.afford(limits.SWEEP_ROWS_MAX):
        propose_sweep(call, after)
        return b""
    keys = _in_turn(state, after, call.feature_level)
    _work_off(state, keys, call)
    if state.chores:
        propose_sweep(call, keys[0])
    return b""


def propose_sweep(call: Call, after: ChoreKey = _BEFORE_ALL) -> None:
    """Ask for a step, which begins behind the chore that came first in this one."""
    request = api.SweepRequest(revision=call.revision)
    if call.feature_level >= limits.FEATURE_LEVEL_BOUNDED:
        request.after_kind, request.after_first_id, request.after_second_id = after
    call.propose(SWEEP_CODE, request)


def _in_turn(state: GroupsState, after: ChoreKey, feature_level: int) -> list[ChoreKey]:
    """Return the chores to do, first those behind `after`, which may be gone by now.

    Each comes first in its turn, and is then given half of a step, whatever the others need.
    """
    keys = list(state.chores.sorted_keys())
    if feature_level < limits.FEATURE_LEVEL_BOUNDED:
        return keys
    begin = bisect_right(keys, after)
    return keys[begin:] + keys[:begin]


def _work_off(state: GroupsState, keys: Sequence[ChoreKey], call: Call) -> None:
    """Do one step of each chore in order, as far as the allowance of a Sweep lasts."""
    allowance = Allowance(limits.SWEEP_ROWS_MAX)
    for key in keys:
        if allowance.left <= 0:
            break
        chore = state.chores.rows[key]
        # Half of the rest, so that a chore which begins anew each time leaves some to others.
        rows = allowance.left if len(keys) == 1 else (allowance.left + 1) // 2
        own = Allowance(rows)
        left = _STEPS[chore.kind](state, chore, call, own)
        allowance.left -= rows - own.left
        if left is None:
            state.chores.delete(key)
        elif left is not chore:
            state.chores.put(key, left)


def _begin(state: GroupsState, chore: Chore, call: Call, is_asked: bool = False) -> None:
    """Do what a new chore asks for, or keep the rest of it.

    The first chore kept asks for a step, unless one is asked for already.
    """
    if chore.key in state.chores:
        return
    left = _STEPS[chore.kind](state, chore, call, call.cascade)
    if left is None:
        return
    if not state.chores and not is_asked:
        propose_sweep(call)
    state.chores.put(left.key, left)


def _end_memberships(
    state: GroupsState, chore: Chore, call: Call, allowance: Allowance
) -> Chore | None:
    session_id = chore.first_id
    groups = state.session_groups.rows.get(session_id)
    if groups is None:
        return None
    if not allowance.take(_sorting_rows(len(groups))):
        return chore
    for group_id in list(groups.sorted_keys()):
        member = state.members.rows[group_id, session_id]
        if chore.kind == entities.CHORE_KIND_USER and member.user_id != chore.second_id:
            continue
        held = len(member.owned) + len(member.revoking)
        if not allowance.take(_ROWS_PER_MEMBERSHIP + held // _PARTITIONS_PER_ROW):
            return chore
        end_membership(state, member, call)
    return None


def _remove_groups(
    state: GroupsState, chore: Chore, call: Call, allowance: Allowance
) -> Chore | None:
    groups = state.topic_groups.rows.get((chore.first_id, chore.second_id))
    if groups is None:
        return None
    if not allowance.take(_sorting_rows(len(groups))):
        return chore
    for group_id in list(groups.sorted_keys()):
        if not _remove_group(state, state.groups.rows[group_id], call, allowance):
            return chore
    return None


def _remove_group(state: GroupsState, group: Group, call: Call, allowance: Allowance) -> bool:
    """Remove a group with its members, and return whether the allowance lasted."""
    sessions = state.group_members.rows.get(group.id)
    count = 0 if sessions is None else len(sessions)
    if not allowance.take(_ROWS_PER_GROUP + _sorting_rows(count)):
        return False
    for session_id in [] if sessions is None else list(sessions.sorted_keys()):
        if not allowance.take(_ROWS_PER_REMOVED_MEMBER):
            return False  # at least this member is left
        state.remove_member(state.members.rows[group.id, session_id])
    if call.keeps_offsets:
        # Only the step that removes the group pays for them: others may have no room beside.
        allowance.spend(state.offset_rows_max(group))
    state.remove_group(group)
    return True


def _change_groups(
    state: GroupsState, chore: Chore, call: Call, allowance: Allowance
) -> Chore | None:
    groups = state.topic_groups.rows.get((chore.first_id, chore.second_id))
    if groups is None:
        return None
    if not allowance.take(_sorting_rows(len(groups))):
        return chore
    for group_id in groups.keys_after(chore.done_group_id, len(groups)):
        group = state.groups.rows[group_id]
        members_count = state.members_count(group_id)
        if not allowance.take(_ROWS_PER_GROUP + _ROWS_PER_CUT_MEMBER * members_count):
            return chore
        if _is_concerned(group, chore):
            allowance.spend(_change_partitions(state, group, chore, call))
        chore = chore._replace(done_group_id=group_id)
    if chore.has_next_round:
        return chore._replace(done_group_id=0, has_next_round=False)
    return None


def _is_concerned(group: Group, chore: Chore) -> bool:
    """Return whether the group may hold deleted partitions, or has another number of them."""
    if chore.changes == 1:
        return group.partitions_count != chore.partitions_count
    return group.created_revision <= chore.revision


def _change_partitions(state: GroupsState, group: Group, chore: Chore, call: Call) -> int:
    """Let a group lose deleted partitions; return the rows that its partitions cost."""
    copied = 0
    if chore.lowest_count < group.partitions_count:
        for member in state.members_of(group.id):
            copied += _truncate(state, member, chore.lowest_count, call)
        if call.keeps_offsets:
            copied += _COPIED_PER_ROW * state.cut_rows(group, chore.lowest_count)
            if state.cut_offsets(group, chore.lowest_count):
                group = with_offsets(group, chore.revision, call)
    changed = group._replace(
        partitions_count=chore.partitions_count, modified_revision=chore.revision
    )
    raise_group_epoch(state, changed, call, by=chore.changes)
    return copied // _COPIED_PER_ROW


def _truncate(state: GroupsState, member: Member, partitions_count: int, call: Call) -> int:
    """Take partitions from the count on from a member; return how many others were copied."""
    held = (member.owned, member.revoking, member.target)
    owned, revoking, target = kept = [below(partitions, partitions_count) for partitions in held]
    deadline = member.revocation_deadline if revoking else 0
    changed = with_partitions(member, call, owned, revoking)
    state.put_member(changed._replace(target=target, revocation_deadline=deadline))
    return sum(len(new) for new, old in zip(kept, held, strict=True) if new is not old)


def _sorting_rows(count: int) -> int:
    """Return the cost of sorting `count` keys, capped so that every step gets something done."""
    return min(count // _SORTED_PER_ROW, limits.SWEEP_ROWS_MAX // 4)


def below(ascending: tuple[int, ...], bound: int) -> tuple[int, ...]:
    """Return the numbers below a bound."""
    if not ascending or ascending[-1] < bound:
        return ascending
    return ascending[: bisect_left(ascending, bound)]


# By kind: work as far as the allowance lasts, and return the rest, None for nothing.
_Step = Callable[[GroupsState, Chore, Call, Allowance], Chore | None]
_STEPS: Final[Mapping[int, _Step]] = {
    entities.CHORE_KIND_SESSION: _end_memberships,
    entities.CHORE_KIND_TOPIC: _remove_groups,
    entities.CHORE_KIND_PARTITIONS: _change_groups,
    entities.CHORE_KIND_USER: _end_memberships,
}
KINDS_OF_CHORES: Final = frozenset(_STEPS)
