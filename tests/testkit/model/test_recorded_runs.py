"""What is recorded of runs, and the windows that TLC gets of them. TLC itself does not run here."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from testkit.model.observed import ObservedRun
from testkit.model.recorder import SeenEntry, SeenReplica
from testkit.model.recording_coordinator import StepFile, merged, recorded
from testkit.model.simulated_runs import of_messages
from testkit.model.windows import LOG_ENTRIES_MAX, liveliest_window, windows, with_last_change
from viewstamp.cluster import Program
from viewstamp.cluster.local import COORDINATOR
from viewstamp.limits import PIPELINE_PREPARES_MAX

REPLICAS = 3


def entries_of(count: int) -> dict[str, SeenEntry]:
    """A log of `count` entries, whose checksums are their ops."""
    made = [SeenEntry(f"{op}", f"{op - 1}", op, 0, max(0, op - 1)) for op in range(1, count + 1)]
    return {entry.checksum: entry for entry in made}


def seen(replica: int, op: int, *, status: str = "normal", restarted: bool = False) -> SeenReplica:
    """A replica whose whole log of `op` entries is durable and committed."""
    durable = (0, 0, op, 0)
    return SeenReplica(
        replica, status, 0, 0, 0, op, f"{op}", op, durable, True, False, restarted=restarted
    )


def cut(changes: list[SeenReplica], count: int, size: int = 10) -> list[ObservedRun]:
    return list(windows(entries_of(count), changes, replica_count=REPLICAS, changes=size))


def test_a_window_begins_when_all_replicas_are_normal() -> None:
    """A run in which replicas still recover has no beginning before all are normal."""
    waits = [seen(each, 1, status="recovering") for each in range(3)]

    (found,) = cut([*waits, *(seen(each, 1) for each in range(3)), seen(0, 2)], 2)

    assert [each.status for each in found.beginning] == ["normal"] * 3
    assert [each.id for each in found.changes] == [0]


def test_a_window_begins_a_pipeline_before_the_lowest_commit_point() -> None:
    """The op there takes the place of op 1, and all ops and commits count from it."""
    base = 100 - PIPELINE_PREPARES_MAX

    (found,) = cut([seen(0, 100), seen(1, 100), seen(2, 100), seen(0, 101)], 101)

    assert [len(each.log) for each in found.beginning] == [100 - base + 1] * 3
    assert [each.commit for each in found.beginning] == [100 - base + 1] * 3
    assert found.beginning[0].log[0] == 0
    assert found.batches == PIPELINE_PREPARES_MAX
    assert found.changes[0].log[-1] % 1_000 == 100 - base + 1


def test_numbers_of_entries_follow_the_order_in_which_they_were_made() -> None:
    """The specification numbers batches one after the other, after those of the beginning."""
    (found,) = cut([*(seen(each, 2) for each in range(3)), seen(0, 3), seen(1, 3), seen(0, 4)], 4)

    numbers = [stamp // 1_000 % 1_000 for stamp in found.changes[-1].log]

    assert numbers == [0, 1, 2, 3]


def test_windows_follow_each_other() -> None:
    """Each begins where the one before has ended."""
    begins = [seen(each, 1) for each in range(3)]

    found = cut([*begins, *(seen(0, op) for op in range(2, 7))], 6, size=2)

    assert [[len(each.log) for each in window.changes] for window in found] == [[2, 3], [4, 5], [6]]


def test_the_liveliest_window_has_a_crash_that_falls_between_two_windows() -> None:
    """One window ends before the crash, and the next begins when the replica is normal again."""
    crash = [seen(1, 4, status="recovering"), seen(1, 4, restarted=True), seen(1, 4)]
    run = [*(seen(each, 1) for each in range(3)), seen(0, 2), seen(0, 3), *crash, seen(0, 4)]

    one_by_one = cut(run, 4, size=3)
    liveliest = liveliest_window(entries_of(4), run, replica_count=REPLICAS, changes=3)

    assert [window.restarts for window in one_by_one] == [0, 0]
    assert liveliest.restarts == 1


def test_a_window_ends_before_a_log_that_tlc_cannot_take() -> None:
    """A log that is longer than the limit, and one that does not reach the window, end it."""
    begins = [seen(each, 1) for each in range(3)]
    long_op = LOG_ENTRIES_MAX + 2

    (found,) = cut([*begins, seen(0, 2), seen(1, long_op)], long_op)
    (cut_off,) = cut([*begins, seen(0, 2), replace(seen(1, 1), head="")], 2)

    assert len(found.changes) == len(cut_off.changes) == 1


def test_a_replica_far_behind_lets_no_window_begin() -> None:
    """Its log would begin so far back that TLC compared hundreds of entries."""
    behind = [seen(0, 90), seen(1, 90), seen(2, 89 - PIPELINE_PREPARES_MAX)]

    assert cut([*behind, seen(0, 91)], 91) == []
    assert cut([*behind, seen(2, 90 - PIPELINE_PREPARES_MAX), seen(0, 91)], 91) != []


def test_another_last_change_is_all_that_a_wrong_run_differs_in() -> None:
    """The tests of TLC change the last observation alone."""
    (found,) = cut([*(seen(each, 1) for each in range(3)), seen(0, 2), seen(1, 2)], 2)

    wrong = with_last_change(found, commit=7)

    assert wrong.changes[:-1] == found.changes[:-1]
    assert wrong.changes[-1] == replace(found.changes[-1], commit=7)


def test_a_run_of_the_simulator_has_restarts_and_views() -> None:
    """The recorder notices starts, and no step that changes nothing is kept."""
    found = max(of_messages(1, 80, seconds=2), key=lambda run: run.liveliness)

    assert found.restarts > 0
    assert found.views > 0
    for replica in range(REPLICAS):
        changes = [each for each in found.changes if each.id == replica]
        repeated = [b for a, b in pairwise(changes) if a == b and not b.restarted]
        assert len(changes) > 1
        assert repeated == []


class FakeSteps:
    """Feeds a file with what steps would have shown."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_ns = 0
        monkeypatch.setattr("time.monotonic_ns", lambda: self.now_ns)

    def take(self, file: StepFile, at_ns: int, shown: SeenReplica) -> None:
        """Append what one step changed, at a time."""
        self.now_ns = at_ns
        file.append(shown, [SeenEntry(shown.head, "0", shown.commit, 0, 0)])


def test_files_of_real_processes_are_put_in_the_order_of_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A message was sent before it was received, so times tell causes before effects."""
    steps, paths = FakeSteps(monkeypatch), [tmp_path / "0", tmp_path / "1"]
    primary, backup = (StepFile(path) for path in paths)

    steps.take(primary, 10, seen(0, 1))
    steps.take(primary, 30, seen(0, 2))
    steps.take(backup, 20, seen(1, 1, restarted=True))
    recorder = merged(paths)

    assert recorder.seen == [seen(0, 1), seen(1, 1, restarted=True), seen(0, 2)]
    assert list(recorder.entries) == ["1", "2"]


def test_only_coordinators_are_recorded() -> None:
    """A service keeps its program; a coordinator gets that of the recorder, with all its flags."""
    service = Program("streams", ("python", "-m", "services.streams"))
    shipped = Program(COORDINATOR, ("python", "-m", "coordinator", "--replica-id", "1"))

    assert recorded(0, service) == service
    assert recorded(0, shipped).command == (
        *("python", "-m", "testkit.model.recording_coordinator"),
        *("--replica-id", "1"),
    )
