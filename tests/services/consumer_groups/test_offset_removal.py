"""What becomes of offsets and watermarks when partitions, groups, topics and streams go."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import pytest

from services.runtime import offset_rows
from tests.services.consumer_groups.harness import STREAM, TOPIC, GroupsHarness, settled
from tests.services.consumer_groups.offset_requests import (
    commit,
    commit_as,
    committed,
    empty_group,
    kept_offsets,
    refusal_of,
    report,
    reported,
)
from viewstamp.api.consumer_groups.v1 import consumer_groups_service_pb2 as api
from viewstamp.api.domain.v1 import effects_pb2

# Offsets at and around the rows in which they are kept, of a topic of 300 partitions. The last row
# does not begin with an offset.
ALL: Final = {0: 1, 126: 2, 127: 3, 128: 4, 255: 5, 257: 6, 299: 7}
COUNT: Final = 300
OTHER_TOPIC: Final = TOPIC + 1
# More of them than one Sweep has rows for.
GROUPS: Final = ("readers", "second", "third", "fourth", "fifth")
COUNTS: Final = [0, 1, 126, 127, 128, 129, 255, 256, 257, 258, 299]


def busy(*names: str) -> GroupsHarness:
    """Return groups that have committed offsets, on a topic that was reported of."""
    harness = GroupsHarness(partitions_count=COUNT)
    for name in names or ("readers",):
        harness.create(name)
        commit(harness, ALL, name=name)
    report(harness, {partition: offset + 10 for partition, offset in ALL.items()})
    report(harness, ALL, are_starts=True)
    return harness


def below(count: int) -> dict[int, int]:
    """Return the offsets of the first partitions."""
    return {partition: offset for partition, offset in ALL.items() if partition < count}


def marks_below(count: int) -> dict[int, tuple[int, int]]:
    """Return the starts and ends of the first partitions."""
    return {partition: (offset, offset + 10) for partition, offset in below(count).items()}


def rows_of(partitions: dict[int, Any]) -> list[int]:
    """Return the rows that are needed for partitions."""
    return sorted({offset_rows.place(partition)[0] for partition in partitions})


def sweep(harness: GroupsHarness) -> int:
    """Work off chores step by step, and return how many steps it took."""
    steps = 0
    while harness.state.chores:
        assert harness.propose_next()
        steps += 1
    return steps


# --- Partitions ---


@pytest.mark.parametrize("count", COUNTS)
def test_offsets_of_deleted_partitions_go(count: int) -> None:
    """They are gone at once, no empty row is left, and new partitions have no offset."""
    harness = busy()
    harness.change_partitions(count)
    assert kept_offsets(harness) == {(1, each): offset for each, offset in below(count).items()}
    assert sorted(number for _, number in harness.state.offsets.rows) == rows_of(below(count))
    harness.change_partitions(COUNT)
    assert committed(harness) == below(count)


@pytest.mark.parametrize("count", COUNTS)
def test_watermarks_of_deleted_partitions_go(count: int) -> None:
    """They are gone at once, no empty row is left, and nothing is known of new partitions."""
    harness = busy()
    harness.change_partitions(count)
    assert reported(harness) == marks_below(count)
    assert sorted(number for _, number in harness.state.watermarks.rows) == rows_of(below(count))
    harness.change_partitions(COUNT)
    assert reported(harness) == marks_below(count)


def test_new_partitions_leave_offsets_as_they_are() -> None:
    """A topic that grows forgets nothing, whether its groups have members or not."""
    harness = settled([11], partitions_count=4)
    commit_as(harness, 11, {0: 5, 3: 6})
    report(harness, {3: 9})
    harness.change_partitions(130)
    assert (committed(harness), reported(harness)) == ({0: 5, 3: 6}, {3: (0, 9)})


def test_members_lose_offsets_with_their_partitions() -> None:
    """Who owns a partition again after it was deleted begins without an offset."""
    harness = settled([11, 12], partitions_count=4)
    for session in (11, 12):
        commit_as(harness, session, dict.fromkeys(harness.member(session).owned, 5))
    harness.change_partitions(1)
    harness.change_partitions(4)
    harness.settle()
    assert len(harness.owners()) == 4
    assert committed(harness) == {0: 5}


def test_watermarks_go_where_there_is_no_group() -> None:
    """They are those of the topic, and as in streams they go before a group is created."""
    harness = GroupsHarness(partitions_count=COUNT)
    report(harness, {0: 1, 299: 1})
    harness.change_partitions(299)
    assert reported(harness) == {0: (0, 1)}


@pytest.mark.parametrize("count", COUNTS)
def test_offsets_of_deleted_partitions_never_show_while_they_go(put_off: None, count: int) -> None:
    """Group after group forgets them, and at no time does a partition that was created again
    show an old offset."""
    harness = busy(*GROUPS)
    for partitions_count in (count, COUNT):
        harness.change_partitions(partitions_count)
    assert len(kept_offsets(harness)) == len(GROUPS) * len(ALL)
    assert reported(harness) == marks_below(count)
    steps = 0
    while harness.state.chores:
        assert [committed(harness, name) for name in GROUPS] == [below(count)] * len(GROUPS)
        assert harness.propose_next()
        steps += 1
    assert steps > 2
    assert [committed(harness, name) for name in GROUPS] == [below(count)] * len(GROUPS)
    assert len(kept_offsets(harness)) == len(GROUPS) * len(below(count))


def test_what_is_committed_while_others_go_stays(put_off: None) -> None:
    """Kept partitions are committed to before their group has heard, and after it has."""
    harness = busy(*GROUPS)
    harness.change_partitions(200)
    expected = []
    for offset, name in enumerate(GROUPS):
        commit(harness, {0: 50 + offset, 130: 60 + offset}, allow_out_of_range=True, name=name)
        expected.append(below(200) | {0: 50 + offset, 130: 60 + offset})
        harness.propose_next()
    assert sweep(harness) == 0
    assert [committed(harness, name) for name in GROUPS] == expected


@pytest.mark.parametrize(
    ("counts", "lowest"),
    [([299, 128], 128), ([299, 128, 300], 128), ([128, 299], 128), ([299, 257, 1, 300, 290], 1)],
)
def test_changes_that_follow_each_other_lose_what_the_lowest_has_lost(
    put_off: None, counts: list[int], lowest: int
) -> None:
    """Groups that have heard of one change hear of the next; none keeps what was deleted."""
    harness = busy(*GROUPS)
    for count in counts:
        harness.change_partitions(count)
        assert harness.propose_next()
    assert sweep(harness) > 0
    assert [committed(harness, name) for name in GROUPS] == [below(lowest)] * len(GROUPS)
    assert len(kept_offsets(harness)) == len(GROUPS) * len(below(lowest))


def test_a_group_that_is_created_meanwhile_keeps_what_it_commits(put_off: None) -> None:
    """The work that is left concerns older groups alone."""
    harness = busy(*GROUPS)
    for count in (128, COUNT):
        harness.change_partitions(count)
    harness.create("new")
    commit(harness, {127: 20}, allow_out_of_range=True, name="new")
    refusal = refusal_of(harness, lambda: commit(harness, {128: 1}, name="new"))
    assert refusal.name == "OVERLOADED"
    assert sweep(harness) > 1
    commit(harness, {299: 1}, name="new")
    assert committed(harness, "new") == {127: 20, 299: 1}


# --- Groups, topics and streams ---


def test_a_deleted_group_leaves_no_offsets() -> None:
    """Others keep theirs, and a new group of the same name begins without any."""
    harness = busy("readers", "second")
    harness.join(11)
    request = api.DeleteConsumerGroupRequest()
    request.group.name = "readers"
    harness.command("DeleteConsumerGroup", request)
    assert kept_offsets(harness) == {(2, each): offset for each, offset in ALL.items()}
    harness.create()
    assert committed(harness) == {}
    assert reported(harness) == marks_below(COUNT)


def test_members_that_leave_leave_their_offsets() -> None:
    """Offsets are the group's: the last member may go, and the next one goes on from there."""
    harness = settled([11])
    commit_as(harness, 11, {3: 5})
    harness.leave(11)
    assert committed(harness) == {3: 5}
    harness.join(12)
    harness.settle()
    commit_as(harness, 12, {4: 6})
    assert committed(harness) == {3: 5, 4: 6}


def two_topics() -> GroupsHarness:
    """Return groups on a topic, and one more on another, all with offsets and watermarks."""
    harness = busy(*GROUPS)
    harness.create("kept", topic=OTHER_TOPIC)
    commit(harness, {200: 8}, name="kept", topic=OTHER_TOPIC)
    report(harness, {200: 9}, topic=OTHER_TOPIC)
    return harness


def delete_topic(harness: GroupsHarness) -> None:
    """Delete the topic of most groups."""
    rows = offset_rows.row_count(COUNT)
    effect = effects_pb2.TopicDeleted(stream_id=STREAM, topic_id=TOPIC, watermark_rows=rows)
    harness.effect(topic_deleted=effect)


def delete_stream(harness: GroupsHarness) -> None:
    """Delete a stream with the topic of most groups, and with one that has none."""
    rows = [offset_rows.row_count(COUNT), 0]
    effect = effects_pb2.StreamDeleted(
        stream_id=STREAM, topic_ids=[TOPIC, OTHER_TOPIC + 1], watermark_rows=rows
    )
    harness.effect(stream_deleted=effect)


DELETIONS: Final[list[Callable[[GroupsHarness], None]]] = [delete_topic, delete_stream]


@pytest.mark.parametrize("delete", DELETIONS)
def test_a_deleted_topic_leaves_neither_offsets_nor_watermarks(
    delete: Callable[[GroupsHarness], None],
) -> None:
    """All of its groups lose their offsets at once, and other topics keep what they have."""
    harness = two_topics()
    delete(harness)
    assert kept_offsets(harness) == {(6, 200): 8}
    assert committed(harness, "kept", OTHER_TOPIC) == {200: 8}
    assert list(harness.state.watermarks.rows) == [(OTHER_TOPIC, 1)]
    assert reported(harness, OTHER_TOPIC) == {200: (0, 9)}


@pytest.mark.parametrize("delete", DELETIONS)
def test_a_deleted_topic_leaves_nothing_once_its_groups_are_gone(
    put_off: None, delete: Callable[[GroupsHarness], None]
) -> None:
    """Watermarks go at once, and offsets with their groups, step by step."""
    harness = two_topics()
    delete(harness)
    assert list(harness.state.watermarks.rows) == [(OTHER_TOPIC, 1)]
    assert len(kept_offsets(harness)) == len(GROUPS) * len(ALL) + 1
    assert sweep(harness) > 2
    assert [group.name for group in harness.state.groups.rows.values()] == ["kept"]
    assert kept_offsets(harness) == {(6, 200): 8}


def test_all_topics_of_a_stream_lose_their_watermarks() -> None:
    """Each topic is told with its number of rows, in the same order."""
    harness = two_topics()
    rows = offset_rows.row_count(COUNT)
    effect = effects_pb2.StreamDeleted(
        stream_id=STREAM, topic_ids=[TOPIC, OTHER_TOPIC], watermark_rows=[rows, rows]
    )
    harness.effect(stream_deleted=effect)
    for table in (harness.state.watermarks, harness.state.offsets, harness.state.groups):
        assert table.rows == {}


# --- Reports ---


def test_reports_raise_watermarks() -> None:
    """Groups know what streams knows: watermarks never move back, and starts move ends."""
    harness = empty_group()
    for ends, are_starts, expected in (
        ({0: 10, 1: 7}, False, {0: (0, 10), 1: (0, 7)}),
        ({0: 9, 1: 8}, False, {0: (0, 10), 1: (0, 8)}),
        ({0: 4}, True, {0: (4, 10), 1: (0, 8)}),
        ({0: 3, 1: 9}, True, {0: (4, 10), 1: (9, 9)}),
        ([(2, 1), (2, 3), (2, 2)], False, {0: (4, 10), 1: (9, 9), 2: (0, 3)}),
    ):
        report(harness, ends, are_starts=are_starts)
        assert reported(harness) == expected


def test_a_report_that_says_nothing_new_changes_nothing() -> None:
    """It leaves the state as it is."""
    harness = busy()
    before = harness.digest()
    report(harness, ALL)
    report(harness, {0: 0, 5: 0}, are_starts=True)
    assert harness.digest() == before


def test_a_report_changes_no_offset_and_no_other_topic() -> None:
    """What a group has committed stays, even where its data is gone by now."""
    harness = busy()
    report(harness, {0: 100, 299: 100}, are_starts=True)
    assert committed(harness) == ALL
    assert reported(harness, OTHER_TOPIC) == {}
