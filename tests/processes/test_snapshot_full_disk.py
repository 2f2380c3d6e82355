"""On a disk that is full to the last byte, a snapshot completes, and frees part of the journal."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from tests.processes import snapshots
from tests.processes.callers import Caller, Refused, refused
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

pytestmark = [pytest.mark.long, pytest.mark.xdist_group("processes-start")]

DISK_BYTES = 12 * SEGMENT_BYTES
# More than two segments.
BULKS = 100
RESERVE_BYTES = 512 * KIB
ATTEMPTS_MAX = 10_000
# Small commands: the prepares that the journal always keeps take less than a segment.
BULK_BYTES = 100 * KIB
BULK = b"\xa2\x06" + encode_varint(BULK_BYTES) + bytes(BULK_BYTES)


def fill_up(path: Path) -> None:
    """Fill the disk to the last byte."""
    with (path / "filler").open("wb", buffering=0) as filler, pytest.raises(OSError) as caught:
        while True:
            filler.write(bytes(4 * KIB))
    assert caught.value.errno == errno.ENOSPC


def write_bulk(root: Caller) -> Refused:
    """Send a command that fills the journal and changes nothing; return why it was refused."""
    with refused() as failure:
        root.raw(snapshots.CREATE_STREAM, BULK)
    return failure.it


def write_until_completed(root: Caller, generation: int) -> None:
    """Send commands until the disk is full and that snapshot is completed; some are refused."""
    alarms: set[str] = set()
    for _ in range(ATTEMPTS_MAX):
        refusal = write_bulk(root)
        assert refusal.reason in ("INVALID_STREAM_NAME", "NO_SPACE")
        alarms.update(root.alarms())
        newest = snapshots.current(root)
        if newest.generation >= generation and newest.decided_at:
            assert newest.state == snapshots.COMPLETED, newest
            assert alarms == {"ALARM_KIND_NO_SPACE"}
            return
    raise AssertionError("no snapshot came")


def reserves(view: Path) -> list[int]:
    """Return the size of the reserve in each copy directory."""
    return [path.stat().st_size for path in (view / "snapshots").glob("copy-*/reserve")]


def check(replica: ReplicaProcesses, disk: SmallDisk) -> None:
    """Fill the disk of a running replica, which frees space by itself, again and again."""
    view = disk.seen_through(replica.processes[COORDINATOR].pid)
    with replica.channel() as channel:
        password = (view / "root_password").read_text().strip()
        root = Caller(channel).logged_in("root", password)
        root.create_stream("before")
        snapshots.take_and_adopt(replica, root)
        eventually(lambda: reserves(view) == [RESERVE_BYTES] * 3)
        # The snapshot must free more than it takes.
        for _ in range(BULKS):
            write_bulk(root)
        fill_up(view)
        write_until_completed(root, 2)
        eventually(lambda: root.create_stream("after"))
        # The disk has room for so much only if further snapshots free space.
        for _ in range(BULKS):
            eventually(lambda: write_bulk(root).reason == "INVALID_STREAM_NAME")
        assert snapshots.current(root).generation > 2
        eventually(lambda: not root.alarms())
        assert get(root, "before").stream.name == "before"
        assert snapshots.verified(root)[-1].is_intact


def test_full_disk_and_snapshots() -> None:
    """The replica is read-only until the snapshot that a full disk begins has freed journal."""
    with short_directory() as directory:
        (directory / "data").mkdir()
        with small_disk(directory / "data", DISK_BYTES) as disk:
            replica = ReplicaProcesses(directory)
            try:
                replica.start(*SERVICE_NAMES)
                flags = [f"--snapshot-reserve-bytes={RESERVE_BYTES}"]
                wrapped = ReplicaProcesses(directory, prefix=disk.prefix, flags=flags)
                wrapped.processes = replica.processes
                wrapped.start(COORDINATOR)
                check(wrapped, disk)
            finally:
                replica.stop()
