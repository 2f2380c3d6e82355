"""When the primary begins a snapshot by itself."""

from __future__ import annotations

from dataclasses import replace

import pytest

from coordinator.snapshot.triggers import ReplicaLoad, SnapshotTriggers, Trigger, TriggerSettings

SETTINGS = TriggerSettings(
    commands=100,
    journal_bytes=1000,
    interval_ms=60_000,
    item_log_bytes=500,
    retry_delay_ms=1_000,
    retry_delay_max_ms=3_000,
)
START = ReplicaLoad(now_ms=5_000, revision=40, journal_bytes=7_000, item_log_bytes=0)
CUT = replace(START, now_ms=10_000, revision=40)


def _after_cut() -> SnapshotTriggers:
    """Return triggers behind generation 1, cut at revision 40 and completed."""
    triggers = SnapshotTriggers(SETTINGS)
    triggers.cut_taken(1, 40, CUT)
    triggers.completed(1)
    return triggers


# The decision about generation 1 is revision 41.
ROWS = [
    ("idle", replace(CUT, revision=41), None),
    ("idle for long", replace(CUT, revision=41, now_ms=10**9), None),
    ("few commands", replace(CUT, revision=140), None),
    ("enough commands", replace(CUT, revision=141), Trigger.COMMANDS),
    ("little journal", replace(CUT, revision=42, journal_bytes=7_999), None),
    ("enough journal", replace(CUT, revision=42, journal_bytes=8_000), Trigger.JOURNAL),
    ("interval not over", replace(CUT, revision=42, now_ms=69_999), None),
    ("interval over", replace(CUT, revision=42, now_ms=70_000), Trigger.INTERVAL),
    ("item log full", replace(CUT, revision=42, item_log_bytes=500), None),
    ("item log beyond", replace(CUT, revision=42, item_log_bytes=501), Trigger.ITEM_LOG),
    ("disk full", replace(CUT, revision=42, is_disk_full=True), Trigger.DISK_FULL),
    ("disk full, nothing to free", replace(CUT, revision=41, is_disk_full=True), None),
    ("ring due", replace(CUT, revision=42, is_ring_due=True), Trigger.RING),
    ("ring due, nothing to free", replace(CUT, revision=41, is_ring_due=True), None),
    (
        "everything",
        ReplicaLoad(10**9, 10**9, 10**9, 10**9, True),
        Trigger.DISK_FULL,
    ),
]


@pytest.mark.parametrize(("load", "expected"), [r[1:] for r in ROWS], ids=[r[0] for r in ROWS])
def test_due(load: ReplicaLoad, expected: Trigger | None) -> None:
    """Each threshold counts from the last completed cut; the most urgent reason is named."""
    assert _after_cut().due(load) is expected


def test_failure_does_not_reset_the_thresholds() -> None:
    """After a failure what had gathered before still counts, once the back-off is over."""
    triggers = _after_cut()
    load = replace(CUT, revision=141)
    triggers.cut_taken(2, 141, load)
    triggers.failed(2, 20_000)
    assert triggers.due(replace(load, now_ms=20_999)) is None
    assert triggers.due(replace(load, now_ms=21_000)) is Trigger.COMMANDS


def test_back_off_doubles_up_to_a_limit() -> None:
    """Failures in a row wait 1, 2, 3, 3 s here; a success begins anew."""
    triggers = _after_cut()
    load = replace(CUT, revision=10_000)
    for generation, delay_ms in enumerate((1_000, 2_000, 3_000, 3_000), start=2):
        triggers.failed(generation, 0)
        assert triggers.due(replace(load, now_ms=delay_ms - 1)) is None
        assert triggers.due(replace(load, now_ms=delay_ms)) is not None
    triggers.completed(6)
    triggers.failed(7, 0)
    assert triggers.due(replace(load, now_ms=1_000)) is not None


def test_completion_counts_from_its_own_cut() -> None:
    """Changes between a cut and its completion count for the next one."""
    triggers = _after_cut()
    triggers.cut_taken(2, 141, replace(CUT, revision=141))
    triggers.completed(2)
    assert triggers.due(replace(CUT, revision=241)) is None
    assert triggers.due(replace(CUT, revision=242)) is Trigger.COMMANDS


def test_interval_begins_when_first_asked() -> None:
    """A replica without a snapshot counts from when it was first asked, or became primary."""
    triggers = SnapshotTriggers(SETTINGS)
    load = replace(START, journal_bytes=0)
    assert triggers.due(load) is None
    assert triggers.due(replace(load, now_ms=64_999)) is None
    assert triggers.due(replace(load, now_ms=65_000)) is Trigger.INTERVAL
    triggers.restart_interval(65_000)
    assert triggers.due(replace(load, now_ms=124_999)) is None


def test_restored() -> None:
    """The replayed decision of a restored cut does not count as a change."""
    triggers = SnapshotTriggers(SETTINGS, cut_revision=40)
    triggers.completed(1)
    triggers.restart_interval(0)
    assert triggers.due(replace(START, revision=41, journal_bytes=0, now_ms=10**9)) is None
    assert triggers.due(replace(START, revision=42, journal_bytes=0, now_ms=10**9)) is not None


@pytest.mark.parametrize("name", ["commands", "journal_bytes", "interval_ms"])
def test_a_limit_of_0_never_triggers(name: str) -> None:
    """A trigger that is off begins nothing, whatever gathers; the others still do."""
    others = dict.fromkeys(("commands", "journal_bytes", "interval_ms"), 10**12)
    much = replace(CUT, now_ms=10**9, revision=10**9, journal_bytes=10**9)
    assert SnapshotTriggers(replace(SETTINGS, **(others | {name: 0}))).due(much) is None
    triggers = SnapshotTriggers(replace(SETTINGS, **(others | {name: 1})))
    triggers.restart_interval(0)
    assert triggers.due(much) is not None
