"""The process beside the coordinator: fed, watched, replaced, and ended with it."""

from __future__ import annotations

import asyncio
from argparse import ArgumentParser
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from coordinator.app import archive_settings
from coordinator.app.archive_settings import ArchiveSettings
from coordinator.app.archive_shipping import ArchiveShipping, ArchiveTally, ShippingPorts
from coordinator.base.alarms import Alarms
from coordinator.telemetry.archive import archive_families
from tests.viewstamp.archive.shipped import ShippedReplica, archived
from viewstamp.api.cluster.v1 import cluster_service_pb2 as cluster_pb2
from viewstamp.archive.directory_store import DirectoryStore

LAG_MS = 5_000
ROUND = {
    "shipped_bytes": 7,
    "reason": "",
    "message": "",
    "gaps": 0,
    "gaps_found": 0,
    "is_archive_known": True,
    "archived_op": 3,
    "waits_for": "",
}


def settings_of(*flags: str) -> ArchiveSettings | None:
    """Return what flags say."""
    parser = ArgumentParser()
    archive_settings.add_arguments(parser)
    return archive_settings.settings_of(parser.parse_args(flags))


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (("--archive-key-file=k",), "need --archive-to"),
        (("--archive-accept-plain",), "need --archive-to"),
        (("--archive-to=a", "--archive-piece-ms=-1"), "--archive-piece-ms is -1: give at least 0"),
        (("--archive-to=a", "--archive-lag-alarm-ms=9"), "give at least 1000"),
        (("--archive-to=a", "--archive-timeout-ms=9"), "give at least 100"),
    ],
)
def test_wrong_flags_are_refused(flags: tuple[str, ...], says: str) -> None:
    """Flags that cannot be meant are named with what would be right."""
    with pytest.raises(ValueError, match=says):
        settings_of(*flags)
    assert settings_of() is None


async def until(reached: Callable[[], bool]) -> None:
    """Wait until something is reached."""
    async with asyncio.timeout(120):
        while not reached():  # noqa: ASYNC110 - what is reached tells nobody
            await asyncio.sleep(0.02)


async def shipping(
    replica: ShippedReplica, place: str, act: Callable[[ArchiveTally, Alarms], Awaitable[None]]
) -> None:
    """Ship from a replica whose last entry is committed, and act meanwhile."""
    settings = settings_of(f"--archive-to={place}", "--archive-piece-ms=0")
    assert settings is not None
    last = replica.entries[-1]
    alarms, tally = Alarms(lambda: 1), ArchiveTally(lambda: int(asyncio.get_running_loop().time()))
    ports = ShippingPorts(replica.data, (), lambda: (last.op, last.checksum), alarms)
    task = asyncio.create_task(ArchiveShipping(settings, ports, tally).run())
    try:
        await act(tally, alarms)
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def test_what_the_coordinator_says_is_shipped(tmp_path: Path) -> None:
    """The process ships up to the head that it is told, and ends with the coordinator."""
    replica = ShippedReplica(tmp_path / "data")
    replica.append(5)

    async def act(tally: ArchiveTally, _: Alarms) -> None:
        await until(lambda: tally.archived_op == 5)
        assert (tally.failures, tally.lag.ops) == (0, 0)

    await shipping(replica, str(tmp_path / "archive"), act)
    assert archived(DirectoryStore(tmp_path / "archive")) == replica.entries
    with replica.shipper(DirectoryStore(tmp_path / "archive")):
        pass  # the process has let go of the directory


async def test_why_the_process_ended_is_kept(tmp_path: Path) -> None:
    """What no other try changes ends the process, which is counted, told, and started again."""
    replica = ShippedReplica(tmp_path / "data")
    replica.append(2)

    async def act(tally: ArchiveTally, _: Alarms) -> None:
        await until(lambda: tally.failures > 0)
        assert "STORE_UNFIT" in tally.problem

    await shipping(replica, "gs://bucket", act)


async def test_lag_and_gaps_raise_the_alarm(tmp_path: Path) -> None:
    """A lag longer than allowed is an alarm with its cause until it ends, and so is a new gap."""
    now = [0]
    tally, alarms = ArchiveTally(lambda: now[0]), Alarms(lambda: 1)
    settings = settings_of("--archive-to=a", f"--archive-lag-alarm-ms={LAG_MS}")
    assert settings is not None
    shipper = ArchiveShipping(
        settings, ShippingPorts(tmp_path, (), lambda: (9, None), alarms), tally
    )

    def told(**changed: Any) -> list[str]:
        tally.take(ROUND | changed)
        shipper.look()
        return [alarm.message for alarm in alarms.all()]

    shipper.look()
    now[0] = LAG_MS - 1
    assert told() == []
    now[0] = LAG_MS
    (message,) = told(reason="STORE_UNREACHABLE", message="nobody is there")
    assert "lacks 6 entries, the oldest committed 5 s ago: STORE_UNREACHABLE: nobody" in message
    assert [alarm.kind for alarm in alarms.all()] == [cluster_pb2.ALARM_KIND_ARCHIVE_BEHIND]
    assert told(archived_op=9) == []
    (message,) = told(archived_op=9, gaps=1)
    assert "a gap in the archive" in message
    samples = {
        sample.name: sample.value for family in archive_families(tally) for sample in family.samples
    }
    assert samples["viewstamp_archive_op"] == 9
    assert samples["viewstamp_archive_shipped_bytes_total"] == 28
    assert samples["viewstamp_archive_failures_total"] == 1
    assert samples["viewstamp_archive_lag_seconds"] == samples["viewstamp_archive_lag_ops"] == 0


class ToldAlarms:
    """Shipping of which a test says the rounds, and sees the alarms."""

    def __init__(self, tmp_path: Path) -> None:
        settings = settings_of("--archive-to=a")
        assert settings is not None
        self.tally, self.alarms = ArchiveTally(lambda: 0), Alarms(lambda: 1)
        ports = ShippingPorts(tmp_path, (), lambda: (9, None), self.alarms)
        self.shipping = ArchiveShipping(settings, ports, self.tally)

    def alarms_after(self, **changed: Any) -> int:
        """Return how many alarms there are after a round."""
        self.tally.take(ROUND | {"archived_op": 9} | changed)
        self.shipping.look()
        return len(alarms) if (alarms := self.alarms.all()) else 0


@pytest.mark.parametrize(
    ("rounds", "alarms"),
    [
        # A gap that the first round makes is new; one that was there is not.
        ([(0, 1)], [1]),
        ([(1, 1), (1, 1)], [0, 0]),
        ([(1, 1), (1, 2), (2, 2)], [0, 1, 1]),
        # It ends when retention has given up the last one, and a later one is new again.
        ([(2, 3), (2, 1), (2, 0), (2, 1)], [1, 1, 0, 1]),
    ],
)
def test_a_gap_that_is_new_is_told_until_there_is_none(
    tmp_path: Path, rounds: list[tuple[int, int]], alarms: list[int]
) -> None:
    """The alarm compares with what the archive lacked when its shipper came, and ends with it."""
    told = ToldAlarms(tmp_path)
    found = [told.alarms_after(gaps_found=before, gaps=after) for before, after in rounds]
    assert found == alarms


def test_an_archive_that_was_not_read_has_no_samples(tmp_path: Path) -> None:
    """A page says nothing of the archive before a round has read it, also if rounds fail."""
    told = ToldAlarms(tmp_path)
    assert told.alarms_after(is_archive_known=False, archived_op=0, reason="A", message="b") == 0

    def gauges() -> set[str]:
        families = archive_families(told.tally)
        return {sample.name for family in families for sample in family.samples}

    later = {"viewstamp_archive_op", "viewstamp_archive_gaps", "viewstamp_archive_lag_ops"}
    assert not gauges() & later
    assert "viewstamp_archive_lag_seconds" in gauges()
    assert told.alarms_after(gaps_found=3, gaps=3) == 0
    assert gauges() >= later


class Talker:
    """A program in place of the shipper, which says what a test likes."""

    def __init__(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
        (tmp_path / "talker.py").write_text(text)
        monkeypatch.setattr("coordinator.app.archive_shipping.MODULE", "talker")
        monkeypatch.setenv("PYTHONPATH", str(tmp_path))


async def test_what_the_process_writes_to_stderr_is_logged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Each line reaches the log, the last one is the problem, and one that is no round is told."""
    lines = "import sys\nsys.stderr.write('first line\\n' + 9000 * 'x' + '\\nthe cause')\nprint(7)"
    Talker(tmp_path, monkeypatch, lines)
    replica = ShippedReplica(tmp_path / "data")
    replica.append(1)

    async def act(tally: ArchiveTally, _: Alarms) -> None:
        await until(lambda: tally.failures > 0)
        assert tally.problem == "the cause"

    await shipping(replica, str(tmp_path / "archive"), act)
    said = [getattr(record, "fields", {}).get("line", "") for record in caplog.records]
    said = [line for line in said if line]
    assert (said[0], said[-1]) == ("first line", "the cause")
    assert sum(line.count("x") for line in said) == 9000
    assert "archive shipper says what nobody knows" in caplog.messages
