"""Fields of requests about offsets: mostly of what a member holds, and around the watermarks."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any, Final, Protocol

from testkit.composite.model import Model
from testkit.composite.model_groups import ROW
from testkit.composite.model_offsets import EARLIEST, LATEST, OFFSETS_END, TIME
from testkit.composite.model_pages import page_token, place_token
from testkit.composite.model_placements import leader
from testkit.composite.model_times import AHEAD_US_MAX, INTERVAL_US
from testkit.composite.world import Topic


class Chooser(Protocol):
    """Who draws what is open."""

    random: Random
    model: Model
    timestamp: int

    def pick(self, choices: Any) -> Any:
        """Return one of the choices."""

    def chance(self, one_in: int) -> bool:
        """Return True once in so many times."""


def fill_reported(chooser: Chooser, request: Any, context: dict[str, Any]) -> None:
    """Report offsets around those that are known, rarely of what is not there; or of everything."""
    topic = context["topic"]
    field = "end_offsets" if hasattr(request, "end_offsets") else "start_offsets"
    is_whole = topic is not None and field == "end_offsets" and chooser.chance(2)
    some = [any_partition(chooser, topic) for _ in range(chooser.pick((0, 1, 1, 2, 3)))]
    wanted = list(range(_many(chooser, topic))) if is_whole else some
    if topic is not None and not chooser.chance(12):
        wanted = _of_one_leader(chooser, topic, wanted)
    for partition in wanted:
        known = topic.ends.get(partition, 0) if topic is not None else 0
        offset = max(int(is_whole), known + chooser.pick((-2, -1, 0, 1, 2, 5)))
        if not is_whole and chooser.chance(30):
            offset = chooser.pick((OFFSETS_END, OFFSETS_END - 1))
        getattr(request, field).add(partition=partition, offset=offset)


def fill_commit_epoch(chooser: Chooser, request: Any, context: dict[str, Any]) -> None:
    """Choose the member that commits, or none; name an epoch, mostly one in force."""
    member = context["committer"] = _committer(chooser, context)
    if member is not None:
        epochs = [member.epoch] * 4 + [member.previous_epoch] * 2 + [member.epoch + 1, 0]
        request.member_epoch = chooser.pick(epochs)
    elif chooser.chance(12):
        request.member_epoch = 1


def fill_commit_session_id(chooser: Chooser, request: Any, context: dict[str, Any]) -> None:
    """Name the session of the member that commits, unless it is the calling one."""
    member = context.get("committer")
    if member is not None and (member.session_id != context["session_id"] or chooser.chance(4)):
        request.session_id = member.session_id
    elif chooser.chance(20):
        request.session_id = chooser.pick((context["session_id"], 1))


def fill_offsets(chooser: Chooser, request: Any, context: dict[str, Any]) -> None:
    """Set offsets that partitions hold, or lie just beside; a reset may go without."""
    topic, member = context["topic"], context.get("committer")
    if hasattr(request, "to") and chooser.chance(2):
        return
    held = sorted(member.owned | member.revoking) if member is not None else []
    partitions = [
        chooser.pick(held) if held and not chooser.chance(12) else any_partition(chooser, topic)
        for _ in range(chooser.pick((1, 1, 1, 1, 1, 2, 2, 3)) - chooser.chance(30))
    ]
    for partition in _mostly_once(chooser, partitions):
        request.offsets.add(partition=partition, offset=_offset(chooser, topic, partition))


def fill_allow_out_of_range(chooser: Chooser, request: Any, context: dict[str, Any]) -> None:
    """Allow any offset, now and then; hardly ever where the request has none."""
    request.allow_out_of_range = chooser.chance(4 if request.offsets else 30)


def fill_reset_to(chooser: Chooser, request: Any, context: dict[str, Any]) -> None:
    """Reset to where data begins or ends, mostly if no offsets are there."""
    if bool(request.offsets) == chooser.chance(12):
        request.to = chooser.pick((EARLIEST, EARLIEST, LATEST, LATEST, LATEST, *[TIME] * 5, 4))


def fill_reported_at(chooser: Chooser, request: Any, context: dict[str, Any]) -> None:
    """Report by a clock that is behind, ahead, or far ahead; or by none."""
    if chooser.chance(2):
        off = chooser.pick((-INTERVAL_US, 0, 1, INTERVAL_US, AHEAD_US_MAX, AHEAD_US_MAX + 1))
        request.reported_at_us = chooser.timestamp + off


def fill_time(chooser: Chooser, request: Any, context: dict[str, Any]) -> None:
    """Ask for a time around those of reports, mostly where one belongs."""
    is_needed = not hasattr(request, "to") or request.to == TIME
    if is_needed == chooser.chance(12):
        return
    topic = context["topic"]
    marks = [mark for row in topic.marks.values() for mark in row] if topic is not None else []
    times = [time for mark in marks for time in (mark.time, mark.time + 1)]
    request.time_us = chooser.pick((*times, *times, 1, chooser.timestamp, 1 << 63))


def fill_partitions(chooser: Chooser, request: Any, context: dict[str, Any]) -> None:
    """Name some partitions, each once; mostly those of which something is known; or none."""
    is_out_of_place = hasattr(request, "to") and not request.to
    if chooser.chance(2) or (is_out_of_place and not chooser.chance(8)):
        return
    topic, group = context["topic"], context["group"]
    known = [*topic.ends, *(group.offsets if group is not None else ())] if topic else []
    partitions = [
        chooser.pick(known) if known and not chooser.chance(4) else any_partition(chooser, topic)
        for _ in range(chooser.pick((1, 1, 2, 3)))
    ]
    request.partitions.extend(_mostly_once(chooser, partitions))


def fill_page_size(chooser: Chooser, request: Any, context: dict[str, Any]) -> None:
    """Choose how long a page is: briefly, so that there are several."""
    request.page_size = chooser.pick((0, 0, 1, 1, 2))


def fill_page_token(chooser: Chooser, request: Any, context: dict[str, Any]) -> None:
    """Go on at some partition, rarely in another list."""
    method = request.DESCRIPTOR.name.removesuffix("Request")
    parent = context["group" if hasattr(request, "group") else "topic"]
    if parent is not None and chooser.chance(3):
        known = parent.offsets if hasattr(request, "group") else parent.ends
        token = page_token(method, parent.id + chooser.chance(20), chooser.pick([0, *known]))
        request.page_token = token[chooser.chance(20) :]


def fill_groups_size(chooser: Chooser, request: Any, context: dict[str, Any]) -> None:
    """Choose how long a page of groups is: briefly, or too long."""
    request.page_size = 1_001 if chooser.chance(30) else chooser.pick((0, 1, 1, 2))


def fill_groups_token(chooser: Chooser, request: Any, context: dict[str, Any]) -> None:
    """Go on behind some group, of another list now and then."""
    places = [(s.id, t.id, g.id) for s, t, g in chooser.model.world.groups()]
    if not places or not chooser.chance(2):
        return
    place = chooser.pick(places)
    of_all = not request.HasField("stream")
    parent = 0 if of_all != chooser.chance(20) else place[0]
    token = place_token("ListAllConsumerGroups", parent, place)
    request.page_token = token[chooser.chance(20) :]


def _committer(chooser: Chooser, context: dict[str, Any]) -> Any:
    """Return whose offsets are committed: the session's, another member's, or nobody's."""
    group = context["group"]
    if group is None or not group.members or chooser.chance(30):
        return None
    own = group.members.get(context["session_id"])
    if own is not None and not chooser.chance(3):
        return own
    members = list(group.members.values())
    if not chooser.chance(8):
        members = [member for member in members if not member.absent_until] or members
    if not chooser.chance(4):
        of_user = [each for each in members if each.user_id == context["user_id"]]
        members = [each for each in of_user if each is not own] or of_user or members
    return chooser.pick(members)


def _many(chooser: Chooser, topic: Topic) -> int:
    """Return all partitions of a topic, or all but some of the last, or those of whole rows."""
    count = len(topic.partitions)
    return chooser.pick((count, count, count, count // ROW * ROW, max(0, count - 1)))  # type: ignore[no-any-return]


def _of_one_leader(chooser: Chooser, topic: Topic, partitions: list[int]) -> list[int]:
    """Return those partitions that are not placed, or that the leader of the first one leads."""
    placements = topic.placements
    leaders = {
        each: leader(chooser.model.world, placements[each])[0]
        for each in partitions
        if each in placements
    }
    chosen = next(iter(leaders.values()), 0)
    return [each for each in partitions if leaders.get(each, chosen) == chosen]


def any_partition(chooser: Chooser, topic: Topic | None) -> int:
    """Return a partition, mostly one of the first, the last, or where a row ends; or one beyond."""
    count = len(topic.partitions) if topic is not None else 0
    if not count or chooser.chance(15):
        return count + chooser.random.randrange(2)
    often = [each for each in (0, 1, 2, count - 1, 127, 128) if each < count]
    partition: int = chooser.pick(often)
    return partition if chooser.chance(2) else chooser.random.randrange(count)


def _mostly_once(chooser: Chooser, partitions: list[int]) -> list[int]:
    """Return partitions without those that are there twice; or with one of these."""
    once = list(dict.fromkeys(partitions))
    return [*once, *once[:1]] if chooser.chance(15) else once


def _offset(chooser: Chooser, topic: Topic | None, partition: int) -> int:
    """Return an offset that a partition holds, or lies just beside."""
    start = topic.starts.get(partition, 0) if topic is not None else 0
    end = topic.ends.get(partition, 0) if topic is not None else 0
    if chooser.chance(60):
        return OFFSETS_END - chooser.chance(2)
    offsets = [start, start, end, end, end, (start + end) // 2, max(0, start - 1), end + 1]
    offset: int = chooser.pick(offsets)
    return offset


OffsetFiller = Callable[[Chooser, Any, dict[str, Any]], None]
# (command, field) or ("", field) -> how it is filled.
OFFSET_FILLERS: Final[dict[tuple[str, str], OffsetFiller]] = {
    ("", "start_offsets"): fill_reported,
    ("", "end_offsets"): fill_reported,
    ("", "offsets"): fill_offsets,
    ("", "allow_out_of_range"): fill_allow_out_of_range,
    ("", "to"): fill_reset_to,
    ("", "partitions"): fill_partitions,
    ("", "reported_at_us"): fill_reported_at,
    ("", "time_us"): fill_time,
    ("CommitOffsets", "member_epoch"): fill_commit_epoch,
    ("CommitOffsets", "session_id"): fill_commit_session_id,
    ("FetchOffsets", "page_size"): fill_page_size,
    ("FetchOffsets", "page_token"): fill_page_token,
    ("FindOffsets", "page_size"): fill_page_size,
    ("FindOffsets", "page_token"): fill_page_token,
    ("ListWatermarks", "page_size"): fill_page_size,
    ("ListWatermarks", "page_token"): fill_page_token,
}
