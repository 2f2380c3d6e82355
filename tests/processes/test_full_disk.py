"""On a disk that fills up, a replica is read-only with an alarm, and recovers with free space."""

from __future__ import annotations

import os
from pathlib import Path

import grpc
import pytest

from tests.processes.callers import Caller, refused
from tests.processes.processes import (
    COORDINATOR,
    SEGMENT_BYTES,
    ReplicaProcesses,
    eventually,
    short_directory,
)
from tests.processes.small_disk import SmallDisk, small_disk
from tests.processes.test_reads_over_grpc import get
from viewstamp.framing import encode_varint
from viewstamp.limits import KIB
from viewstamp.routing import SERVICE_NAMES

pytestmark = pytest.mark.xdist_group("processes-start")

DISK_BYTES = 8 * SEGMENT_BYTES
CREATE_STREAM = "/viewstamp.api.streams.v1.StreamsService/CreateStream"
# Well formed but without a name: the log takes all of it, and streams refuses it.
BULK_BYTES = 200 * KIB
BULK = b"\xa2\x06" + encode_varint(BULK_BYTES) + bytes(BULK_BYTES)
EXHAUSTED = grpc.StatusCode.RESOURCE_EXHAUSTED


def fill(path: Path) -> None:
    """Leave less space than a segment takes."""
    status = os.statvfs(path)
    with (path / "filler").open("wb") as filler:
        left = status.f_bavail * status.f_frsize - SEGMENT_BYTES // 2
        filler.write(bytes(left))


def write_until_refused(root: Caller) -> int:
    """Send bulky commands until the disk is full; return how many got into the log."""
    for written in range(200):
        with refused() as failure:
            root.raw(CREATE_STREAM, BULK)
        if failure.it.reason == "NO_SPACE":
            assert failure.it.code is EXHAUSTED
            assert "read-only until space returns" in failure.it.message
            return written
        assert failure.it.reason == "INVALID_STREAM_NAME"
    raise AssertionError("the disk was never full")


def check(replica: ReplicaProcesses, disk: SmallDisk) -> None:
    """Fill the disk of a running replica, look at it, and free the disk again."""
    view = disk.seen_through(replica.processes[COORDINATOR].pid)
    with replica.channel() as channel:
        password = (view / "root_password").read_text().strip()
        root = Caller(channel).logged_in("root", password)
        root.create_stream("before")
        fill(view)
        assert write_until_refused(root) >= 10
        assert root.alarms() == ["ALARM_KIND_NO_SPACE"]
        (alarm,) = root.status().alarms
        assert "free space" in alarm.message
        assert get(root, "before").stream.name == "before"
        with refused() as failure:
            root.create_stream("during")
        assert tuple(failure) == (EXHAUSTED, "NO_SPACE")
        before = root.digests()
        (view / "filler").unlink()
        eventually(lambda: not root.alarms())
        assert root.digests() == before
        assert root.create_stream("after").header.revision


@pytest.mark.long
def test_full_disk() -> None:
    """Commands are refused with NO_SPACE, reads are served, and it recovers by itself."""
    with short_directory() as directory:
        (directory / "data").mkdir()
        with small_disk(directory / "data", DISK_BYTES) as disk:
            replica = ReplicaProcesses(directory)
            try:
                replica.start(*SERVICE_NAMES)
                wrapped = ReplicaProcesses(directory, prefix=disk.prefix)
                wrapped.processes = replica.processes
                wrapped.start(COORDINATOR)
                check(wrapped, disk)
            finally:
                replica.stop()
