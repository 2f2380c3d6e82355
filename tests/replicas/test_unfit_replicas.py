"""Replicas that should not lead: their service hangs, their disk hangs, or their disk is full."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import grpc.aio
import pytest

from testkit.other_coordinators import run_instead
from tests.processes.small_disk import small_disk
from tests.replicas import odd_coordinator, snapshotting
from tests.replicas.snapshotting import FILLER, SEGMENT_BYTES, fill, several_generations, transfers
from tests.replicas.trial import (
    SETTLE_TIMEOUT_S,
    ReplicasTrial,
    agree,
    lead,
    status_of,
    token_of,
    trial,
    under_load,
)
from viewstamp.api.cluster.v1 import cluster_service_pb2 as cluster_pb2
from viewstamp.client import Endpoint
from viewstamp.client import unary as client_unary
from viewstamp.cluster import Program
from viewstamp.cluster.local import COORDINATOR
from viewstamp.cluster.process import last_lines
from viewstamp.errors import Refusal
from viewstamp.status import grpc_code

pytestmark = pytest.mark.long

OPERATIONS = 150
DISK_BYTES = 20 * SEGMENT_BYTES  # enough, unless a test uses it up
NO_RESERVE = ("--snapshot-reserve-bytes", "0")
ARGUMENTS = ("--journal-segment-bytes", str(SEGMENT_BYTES), *NO_RESERVE)
FULL = cluster_pb2.ALARM_KIND_NO_SPACE


async def status_until(
    made: ReplicasTrial, replica: int, wanted: Callable[[cluster_pb2.GetStatusResponse], bool]
) -> None:
    """Ask one replica until its status is as wanted."""
    last: object = None
    try:
        async with asyncio.timeout(SETTLE_TIMEOUT_S):
            while True:
                try:
                    last = await status_of(made.replicas.addresses[replica], made.replicas)
                    if wanted(last):
                        return
                except (Refusal, grpc.aio.AioRpcError) as error:
                    code = grpc_code(error) if isinstance(error, Refusal) else error.code()
                    assert code in _PASSING, error
                    last = error
                await asyncio.sleep(0.1)
    except TimeoutError:
        raise AssertionError(f"replica {replica} was not as wanted; its last: {last}") from None


_PASSING = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)


def kinds(status: cluster_pb2.GetStatusResponse) -> set[int]:
    """Return which alarms are raised."""
    return {alarm.kind for alarm in status.alarms}


def unfit(status: cluster_pb2.GetStatusResponse, replica: int) -> str:
    """Return why a status calls a replica unfit as a primary; empty if it is fit."""
    return next(each.unfit for each in status.replicas if each.replica_id == replica)


def is_away(status: cluster_pb2.GetStatusResponse, replica: int) -> bool:
    """Whether a replica has no connection to another one, whose status this is."""
    return next(each for each in status.replicas if each.replica_id == replica).link != "connected"


@pytest.mark.exhaustive
async def test_a_primary_whose_service_hangs_hands_over(tmp_path: Path) -> None:
    """Another primary serves, statuses show why, and the old one is fit again with its service."""
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


def with_a_disk_that_hangs(replica: int, program: Program) -> Program:
    """Give coordinators a disk that hangs while a file exists."""
    return run_instead(program, odd_coordinator.__name__, odd_coordinator.hanging_disk.__name__)


@pytest.mark.exhaustive
async def test_a_primary_whose_disk_hangs_hands_over(tmp_path: Path) -> None:
    """Another primary serves, statuses show why, and the old one follows once it can write."""
    async with trial(tmp_path, adapt=with_a_disk_that_hangs) as made:
        async with under_load(made):
            await made.until_answered(OPERATIONS)
            old = await made.primary()
            hangs = made.replicas.replicas[old].data_directory / odd_coordinator.HANGS
            hangs.touch()
            await made.until_answered(2 * OPERATIONS)
            new = await made.primary()
            assert new != old
            await status_until(made, new, lambda status: "disk" in unfit(status, old))
            hangs.unlink()
            await status_until(made, new, lambda status: not unfit(status, old))
            await made.until_answered(OPERATIONS)
        await agree(made)


@pytest.mark.exhaustive
async def test_a_replica_whose_disk_hangs_ends_when_it_is_told_to(tmp_path: Path) -> None:
    """It waits for its disk for a limited time, says so, and ends; no written entry is lost."""
    async with trial(tmp_path, adapt=with_a_disk_that_hangs) as made:
        hanging = made.replicas.replicas[(await made.primary() + 1) % 3]
        hangs = hanging.data_directory / odd_coordinator.HANGS
        hangs.touch()
        async with under_load(made):
            await made.until_answered(OPERATIONS)
            await hanging.stop()
            log = "\n".join(last_lines(hanging.log_path(COORDINATOR)))
            assert "has not finished a write" in log
            hangs.unlink()
            await hanging.start()
            await made.until_answered(OPERATIONS)
        await agree(made)


async def own_status(
    made: ReplicasTrial, replica: int, other: int
) -> cluster_pb2.GetStatusResponse:
    """Ask a replica that cannot log anybody in for its status, with a token of another one."""
    addresses = made.replicas.addresses
    async with Endpoint(addresses[other]).open() as informed:
        token = await token_of(made.replicas, informed)
    async with Endpoint(addresses[replica]).open() as channel:
        request = cluster_pb2.GetStatusRequest()
        status: cluster_pb2.GetStatusResponse = await client_unary(
            channel, request, access_token=token, stale=True
        )
        return status


@pytest.fixture
def disks(tmp_path: Path) -> Iterator[Callable[[int], Path]]:
    """Yield a function that gives a replica a small disk before its start, and returns its path."""
    with ExitStack() as stack:

        def make(replica: int) -> Path:
            path = tmp_path / f"replica-{replica}"
            path.mkdir()
            disk = stack.enter_context(small_disk(path, DISK_BYTES))
            assert not disk.prefix, "a disk that outlives a process: be root, or have sudo"
            return path

        yield make


def use_up(path: Path) -> Path:
    """Use up the disk, even while others write; return the file to remove."""
    filler = path / "filler"
    status = os.statvfs(path)
    with filler.open("wb") as file:
        part = status.f_bavail * status.f_frsize
        while part >= status.f_frsize:
            try:
                os.posix_fallocate(file.fileno(), file.seek(0, os.SEEK_END), part)
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise
                part //= 2
    return filler


@pytest.mark.parametrize(
    "replica", [0, pytest.param(1, marks=pytest.mark.exhaustive)], ids=["primary", "backup"]
)
async def test_a_full_disk_stops_nobody(
    tmp_path: Path, disks: Callable[[int], Path], replica: int
) -> None:
    """The others serve; the full replica stays up, restarts, and follows once there is space."""
    disk = disks(replica)
    async with trial(tmp_path, arguments=ARGUMENTS) as made:
        await made.admin.users.create(FILLER, "a password of a filler")
        await lead(made, replica, leads=replica == 0)
        async with under_load(made):
            await made.until_answered(OPERATIONS)
            filler = use_up(disk)
            await status_until(made, replica, lambda status: FULL in kinds(status))
            # After this even its last segment has no room.
            await fill(made.admin)
            await made.until_answered(OPERATIONS)
            assert await made.primary() != replica
            made.replicas.replicas[replica].kill(COORDINATOR)
            other = (replica + 1) % 3
            await status_until(made, other, lambda status: is_away(status, replica))
            # After its restart the disk is still full, and the others hear of it. It has no room
            # for the log of a view, and reports this nevertheless.
            await status_until(
                made,
                other,
                lambda status: not is_away(status, replica) and "full" in unfit(status, replica),
            )
            assert FULL in kinds(await own_status(made, replica, other))
            await made.until_answered(OPERATIONS)
            filler.unlink()
            await status_until(made, replica, lambda status: FULL not in kinds(status))
            await made.until_answered(OPERATIONS)
        await agree(made)


@pytest.mark.exhaustive
async def test_others_go_on_without_a_full_disk_and_drop_their_logs(
    tmp_path: Path, disks: Callable[[int], Path]
) -> None:
    """The others drop the log that it lacks; once it has space, it gets a snapshot by itself."""
    replica = 1
    disk = disks(replica)
    arguments = (*snapshotting.ARGUMENTS, *NO_RESERVE)
    async with trial(tmp_path, callers=2, arguments=arguments) as made:
        await made.admin.users.create(FILLER, "a password of a filler")
        await lead(made, replica, leads=False)
        async with under_load(made):
            await made.until_answered(OPERATIONS)
            filler = use_up(disk)
            await status_until(made, replica, lambda status: FULL in kinds(status))
            await several_generations(made)
            await made.until_answered(OPERATIONS)
            filler.unlink()
            await status_until(made, replica, lambda status: FULL not in kinds(status))
            await made.until_answered(OPERATIONS)
        await agree(made)
        assert transfers(made, replica), "it was not left behind, so nothing was shown"
