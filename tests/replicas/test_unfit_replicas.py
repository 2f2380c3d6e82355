"""Replicas that had better not lead: with a service that hangs, or with a full disk."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc.aio
import pytest

from tests.processes.small_disk import SmallDisk, small_disk
from tests.replicas.trial import SETTLE_TIMEOUT_S, Trial, digests, status_of, trial, under_load
from viewstamp.api.cluster.v1 import cluster_service_pb2 as cluster_pb2
from viewstamp.cluster.local import COORDINATOR
from viewstamp.errors import Refusal
from viewstamp.limits import MIB
from viewstamp.status import grpc_code

pytestmark = pytest.mark.long

OPERATIONS = 150
SEGMENT_BYTES = 4 * MIB
DISK_BYTES = 10 * SEGMENT_BYTES
ARGUMENTS = ("--journal-segment-bytes", str(SEGMENT_BYTES), "--snapshot-reserve-bytes", "0")


async def status_until(
    made: Trial, replica: int, wanted: Callable[[cluster_pb2.GetStatusResponse], bool]
) -> None:
    """Ask one replica until its status is as wanted."""
    async with asyncio.timeout(SETTLE_TIMEOUT_S):
        while True:
            try:
                if wanted(await status_of(made.replicas.addresses[replica], made.replicas)):
                    return
            except (Refusal, grpc.aio.AioRpcError) as error:
                code = grpc_code(error) if isinstance(error, Refusal) else error.code()
                assert code in _PASSING, error
            await asyncio.sleep(0.1)


_PASSING = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)


def kinds(status: cluster_pb2.GetStatusResponse) -> set[int]:
    """Return which alarms are raised."""
    return {alarm.kind for alarm in status.alarms}


def unfit(status: cluster_pb2.GetStatusResponse, replica: int) -> str:
    """Return what a status says against a replica as the primary."""
    return next(each.unfit for each in status.replicas if each.replica_id == replica)


def is_away(status: cluster_pb2.GetStatusResponse, replica: int) -> bool:
    """Whether a replica does not reach another one."""
    return next(each for each in status.replicas if each.replica_id == replica).link != "connected"


async def agree(made: Trial) -> None:
    """All replicas have retired the same op, and have the same digests there."""
    statuses = await made.settled()
    assert len({digests(status) for status in statuses}) == 1
    assert made.violations() == []


async def test_a_primary_whose_service_hangs_hands_over(tmp_path: Path) -> None:
    """Callers go on with another primary, all see why, and it is fit again with its service."""
    async with trial(tmp_path) as made:
        async with under_load(made):
            await made.until_answered(OPERATIONS)
            old = await made.primary()
            hanging = made.replicas.replicas[old]
            hanging.kill("streams", signal.SIGSTOP)
            try:
                await made.until_answered(OPERATIONS)
                new = await made.primary()
                assert new != old
                await status_until(made, new, lambda status: "streams" in unfit(status, old))
            finally:
                hanging.kill("streams", signal.SIGCONT)
            await status_until(made, new, lambda status: not unfit(status, old))
            await made.until_answered(OPERATIONS)
        await agree(made)


@pytest.fixture(params=[0, 1])
def cramped(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[int, SmallDisk]]:
    """Yield a replica, the first primary or a backup, and its small disk."""
    replica: int = request.param
    path = tmp_path / f"replica-{replica}"
    path.mkdir()
    with small_disk(path, DISK_BYTES) as disk:
        assert not disk.prefix, "mount a tmpfs as root, or with sudo"
        yield replica, disk


def fill(path: Path) -> Path:
    """Leave no space at all; return the file to remove."""
    filler = path / "filler"
    with filler.open("wb") as file:
        status = os.statvfs(path)
        os.posix_fallocate(file.fileno(), 0, status.f_bavail * status.f_frsize)
    return filler


async def test_a_full_disk_stops_nobody(tmp_path: Path, cramped: tuple[int, SmallDisk]) -> None:
    """The others go on; the full one stays up, comes up again, and follows once there is room."""
    replica, disk = cramped
    async with trial(tmp_path, arguments=ARGUMENTS) as made:
        async with under_load(made):
            await made.until_answered(OPERATIONS)
            filler = fill(disk.path)
            full = cluster_pb2.ALARM_KIND_NO_SPACE
            await status_until(made, replica, lambda status: full in kinds(status))
            await made.until_answered(OPERATIONS)
            assert await made.primary() != replica
            made.replicas.replicas[replica].kill(COORDINATOR)
            other = (replica + 1) % 3
            await status_until(made, other, lambda status: is_away(status, replica))
            # Alive again it finds the disk as full as before, and the others hear of it.
            await status_until(made, replica, lambda status: full in kinds(status))
            await status_until(made, other, lambda status: "full" in unfit(status, replica))
            await made.until_answered(OPERATIONS)
            filler.unlink()
            await status_until(made, replica, lambda status: full not in kinds(status))
            await made.until_answered(OPERATIONS)
        await agree(made)
