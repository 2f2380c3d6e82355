"""What a reader gets who begins at the offset for a time, judged by the records themselves."""

from __future__ import annotations

from typing import Final

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from services.consumer_groups import marks
from services.consumer_groups.marks import MarksTable
from services.runtime import offset_rows
from tests.services.consumer_groups.harness import GroupsHarness
from tests.services.consumer_groups.offset_requests import empty_group, found, report
from viewstamp.limits import MARK_INTERVAL_US, MARKS_PER_ROW_MAX
from viewstamp.machine.tables import Table, UndoLog

SECOND: Final = 1_000_000
PARTITIONS: Final = (0, 1, 127, 128)
COUNT: Final = 130


class PartitionRecords:
    """The records of one partition: when each was written. The first ones may have been dropped."""

    def __init__(self) -> None:
        self.start = 0
        self.written_at: list[int] = []

    def needed(self, time_us: int) -> int | None:
        """Return the first offset that was written at a time or later and remains; None if none."""
        for offset in range(self.start, len(self.written_at)):
            if self.written_at[offset] >= time_us:
                return offset
        return None


class Platform:
    """Brokers that write, lose and drop records, and report honestly; and their control plane."""

    def __init__(self) -> None:
        self.harness: GroupsHarness = empty_group(partitions_count=COUNT)
        self.harness.is_checking = False
        self.now = 100 * SECOND
        self.logs = {partition: PartitionRecords() for partition in PARTITIONS}
        self.times = {1, self.now}

    def wait(self, seconds: int) -> None:
        """Let time pass."""
        self.now += seconds * SECOND + 1
        self.times |= {self.now, self.now + 1}

    def write(self, partition: int, count: int) -> None:
        """Write records, a microsecond apart."""
        for _ in range(count):
            self.now += 1
            self.logs[partition].written_at.append(self.now)

    def report(self, partitions: set[int], late_us: int) -> None:
        """Report ends; the report is logged so much later."""
        ends = {each: len(self.logs[each].written_at) for each in sorted(partitions)}
        report(self.harness, ends, written_by=self.now + late_us)

    def run(self, turns: int) -> None:
        """Write and report everywhere, each time after a while."""
        for _ in range(turns):
            self.wait(11)
            for partition in PARTITIONS:
                self.write(partition, 1)
            self.report(set(PARTITIONS), 0)

    def lose(self, partition: int, count: int) -> None:
        """Go on with another leader, which lacks the last records, and says so before it writes."""
        log = self.logs[partition]
        del log.written_at[max(log.start, len(log.written_at) - count) :]
        self.report({partition}, 0)

    def drop(self, partition: int, count: int) -> None:
        """Drop the first records, and say so."""
        log = self.logs[partition]
        log.start = min(len(log.written_at), log.start + count)
        report(self.harness, {partition: log.start}, are_starts=True)

    def check(self) -> None:
        """Check for each time that its offset is not higher than the first record since then."""
        for time_us in sorted(self.times | {self.now + 1}):
            offsets = found(self.harness, time_us)
            for partition, (offset, written_by) in offsets.items():
                log = self.logs[partition]
                needed = log.needed(time_us)
                assert needed is None or offset <= needed, (time_us, partition)
                assert offset >= log.start and written_by < max(time_us, 1)


STEPS: Final = st.one_of(
    st.tuples(st.just("wait"), st.sampled_from([0, 1, 9, 11, 300])),
    st.tuples(st.just("write"), st.sampled_from(PARTITIONS), st.integers(1, 4)),
    st.tuples(
        st.just("report"),
        st.sets(st.sampled_from(PARTITIONS), min_size=1),
        st.sampled_from([0, 1, SECOND, 30 * SECOND]),
    ),
    st.tuples(st.just("run"), st.integers(1, 8)),
    st.tuples(st.just("lose"), st.sampled_from(PARTITIONS), st.sampled_from([1, 2, 5, 12, 40])),
    st.tuples(st.just("drop"), st.sampled_from(PARTITIONS), st.integers(1, 3)),
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(steps=st.lists(STEPS, max_size=60))
def test_nobody_reads_too_little(steps: list[tuple[object, ...]]) -> None:
    """Whatever was written since a time lies at its offset or behind, whatever became of records.

    Reports may come late, and from leaders that have lost records.
    """
    platform = Platform()
    for name, *arguments in steps:
        getattr(platform, str(name))(*arguments)
    platform.check()


def reported_each(gap_us: int, count: int) -> MarksTable:
    """Return the marks after reports at equal times, each with another record."""
    undo = UndoLog()
    table: MarksTable = Table(undo)
    for number in range(1, count + 1):
        marks.note(table, 1, 1, {0: {0: number}}, number * gap_us)
        undo.settle()
    return table


@pytest.mark.parametrize(
    ("gap_us", "count"), [(SECOND, 20_000), (3 * SECOND, 10_000), (3_600 * SECOND, 9_000)]
)
def test_nobody_reads_far_too_much(gap_us: int, count: int) -> None:
    """An offset is too early by the age of its time at most, and mostly by less than a third of it.

    So it is for reports each second during hours, and each hour during a year.
    """
    (row,) = reported_each(gap_us, count).rows.values()
    assert len(row.written_by) == MARKS_PER_ROW_MAX
    now, errors = count * gap_us, []
    for number in range(2, count, count // 500):
        time_us = number * gap_us + 1
        written_by, ends = row.before(time_us)
        assert offset_rows.at(ends, 0) - 1 == written_by // gap_us
        beyond = time_us - written_by - 2 * MARK_INTERVAL_US - gap_us
        errors.append(beyond / (now - time_us + gap_us))
    assert max(errors) <= 1
    assert sorted(errors)[len(errors) // 2] <= 1 / 3
