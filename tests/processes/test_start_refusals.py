"""A replica refuses to start with wrong flags or damage, and recovers from torn writes."""

from __future__ import annotations

import re
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.processes.callers import Caller
from tests.processes.processes import COORDINATOR, ReplicaProcesses, short_directory
from viewstamp.format.record import SECTOR_BYTES
from viewstamp.format.superblock import COPY_BYTES
from viewstamp.routing import SERVICE_NAMES

pytestmark = [pytest.mark.long, pytest.mark.xdist_group("processes-start")]

STREAMS = [f"stream-{number}" for number in range(12)]
OF_THREE = ("--replica-count", "3", "--peer-listen", "127.0.0.1:0")
OTHER_TWO = ("--peer=1=127.0.0.1:7411", "--peer=2=127.0.0.1:7412")


@pytest.fixture(scope="module")
def bootstrapped() -> Iterator[tuple[ReplicaProcesses, list[str]]]:
    """A stopped replica with some state, and its digests; tests copy it, and do not change it."""
    with short_directory() as directory:
        replica = ReplicaProcesses(directory)
        replica.start()
        with replica.root() as root:
            for name in STREAMS:
                root.create_stream(name)
            digests = root.digests()
        assert set(replica.stop().values()) == {0}
        yield replica, digests


@pytest.fixture
def copy(bootstrapped: tuple[ReplicaProcesses, list[str]]) -> Iterator[ReplicaProcesses]:
    """A copy of the bootstrapped replica, stopped at the end."""
    with short_directory() as directory:
        replica = bootstrapped[0].copy_to(directory)
        yield replica
        replica.stop()


def with_flags(replica: ReplicaProcesses, *flags: str) -> ReplicaProcesses:
    """Return a replica on the same directory whose coordinator gets other flags."""
    return ReplicaProcesses(replica.directory, flags=flags)


def segment(replica: ReplicaProcesses) -> Path:
    """Return the journal's first segment, which holds all records of these tests."""
    return sorted((replica.data / "journal").glob("segment-*.log"))[0]


def record_offsets(path: Path) -> list[int]:
    """Return the offsets of the sectors that are not blank, after the header's."""
    data = path.read_bytes()
    starts = range(SECTOR_BYTES, len(data), SECTOR_BYTES)
    return [at for at in starts if data[at : at + SECTOR_BYTES].strip(b"\0")]


def flip(path: Path, offset: int) -> None:
    """Invert one byte of a file."""
    with path.open("r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes((byte ^ 0xFF,)))


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (("--cluster-id", "00" * 16), r"belongs to cluster [0-9a-f]{32}, not 0{32}: correct"),
        (("--cluster-id", "zz"), r"--cluster-id is 'zz': it has 32 hex digits"),
        (("--replica-id", "1"), r"--replica-id is 1: it counts from 0"),
        (("--replica-count", "3"), r"--peer-listen is missing: 3 replicas must be reachable"),
        (("--peer=1=127.0.0.1:1",), r"need --replica-count of at least 2"),
        ((*OF_THREE, "--peer=1=127.0.0.1:7411"), r"\[1\]: give each of \[1, 2\] once"),
        ((*OF_THREE, "--peer=0=127.0.0.1:7410"), r"\[0\]: give each of \[1, 2\] once"),
        ((*OF_THREE, "--peer=x=127.0.0.1:7411"), r"write ID=HOST:PORT"),
        ((*OF_THREE, *OTHER_TWO), r"was bootstrapped for 1 replicas, not 3"),
        ((*OF_THREE, *OTHER_TWO, "--peer-tls-key=k"), r"--peer-tls-ca go together: give all three"),
        (("--replica-count", "0"), r"1 to 6 are possible"),
        (("--journal-segment-bytes", "5"), r"at least 4194304"),
        (("--listen", "7400"), r"give HOST:PORT"),
        (("--service", "users="), r"write NAME=TARGET"),
        (("--cluster-key", "/nonexistent/key"), r"No such file"),
    ],
)
def test_wrong_flags(copy: ReplicaProcesses, flags: tuple[str, ...], says: str) -> None:
    """Each wrong flag is refused with exit code 2 and one line that says what is right."""
    assert re.search(says, with_flags(copy, *flags).refusal())


def test_directory_of_another_replica(copy: ReplicaProcesses) -> None:
    """A directory that was bootstrapped for another replica or another count is refused."""
    # The superblock now says what another replica's would say.
    from coordinator.journal.superblock import Superblock
    from coordinator.storage import FileStorage
    from viewstamp.format.superblock import SuperblockState

    path = copy.data / "superblock"
    with_cluster = Superblock.open(FileStorage(), str(path)).state.cluster_id
    for replica_id, replica_count, says in (
        (1, 3, "belongs to replica 1, not 0"),
        (0, 3, "was bootstrapped for 3 replicas, not 1"),
    ):
        path.unlink()
        state = SuperblockState(with_cluster, replica_id, replica_count, 1, 1, 1, 0)
        Superblock.create(FileStorage(), str(path), state)
        assert says in copy.refusal()


def test_directory_in_use(copy: ReplicaProcesses) -> None:
    """A second process on the directory names the first one, which goes on."""
    copy.start()
    pid = copy.ready[COORDINATOR]["pid"]
    line = copy.refusal()
    assert f"in use by process {pid}" in line
    assert "give this one a directory of its own" in line
    with copy.root() as root:
        assert root.create_stream("still-here").header.revision


def test_taken_addresses(copy: ReplicaProcesses) -> None:
    """A taken port, and a taken socket of a service, are refused by name."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        line = with_flags(copy, f"--listen={address}").refusal()
        assert f"--listen {address}: cannot be bound" in line
        assert "Address already in use" in line
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(copy.sockets / "streams.sock"))
        other.listen()
        assert "another process serves there; stop it first" in copy.refusal("streams")


def test_cluster_keys(copy: ReplicaProcesses) -> None:
    """A key that is missing, short, or open to all is refused, by users and coordinator alike."""

    def short() -> None:
        copy.key.write_text("abcd\n")

    def open_to_all() -> None:
        copy.key.write_text("ab" * 32)
        copy.key.chmod(0o644)

    cases: list[tuple[Callable[[], None], str]] = [
        (short, "does not hold 64 hexadecimal digits"),
        (open_to_all, "open to every account (mode 0644); run `chmod 600` on it"),
        (copy.key.unlink, "No such file"),
    ]
    for spoil, says in cases:
        spoil()
        for name in (COORDINATOR, "users"):
            line = copy.refusal(name)
            assert says in line
            assert str(copy.key) in line


def test_services_that_are_mixed_up(copy: ReplicaProcesses) -> None:
    """A coordinator whose services are swapped ends with what to correct, and exit code 2."""
    swapped = with_flags(copy, f"--service=users=unix:{copy.sockets}/streams.sock")
    swapped.start(*SERVICE_NAMES)
    swapped.spawn(COORDINATOR)
    assert swapped.wait(COORDINATOR) == 2
    assert "is the service of stage 3, not 2: correct --service" in swapped.errors(COORDINATOR)
    swapped.stop()


def test_restart_and_replay_give_the_same_state(
    copy: ReplicaProcesses, bootstrapped: tuple[ReplicaProcesses, list[str]]
) -> None:
    """A fresh coordinator and fresh services on a copy of the directory reach equal digests."""
    copy.start()
    with copy.root() as root:
        assert root.digests() == bootstrapped[1]


def test_torn_tail(copy: ReplicaProcesses) -> None:
    """A record that was half written when power failed is cut; all other records remain."""
    path = segment(copy)
    last = record_offsets(path)[-1]
    with path.open("r+b") as file:
        file.seek(last)
        record = file.read(SECTOR_BYTES)
        # A further record had begun, and only part of its first sector had reached the disk.
        file.seek(last + SECTOR_BYTES)
        file.write(record[: SECTOR_BYTES // 2])
    copy.start()
    with copy.root() as root:
        for name in STREAMS:
            assert root_sees(root, name)
        assert root.create_stream("goes-on").header.revision
    assert "the journal ended in a torn record" in copy.errors(COORDINATOR)


def root_sees(root: Caller, name: str) -> bool:
    """Return whether a stream is there."""
    from tests.processes.test_reads_over_grpc import get

    return bool(get(root, name).stream.name == name)


def test_corrupted_record(copy: ReplicaProcesses) -> None:
    """A damaged record before intact ones is never cut: exit code 2, with place and remedies."""
    path = segment(copy)
    offset = record_offsets(path)[3]
    before = path.read_bytes()
    flip(path, offset + 200)
    line = copy.refusal()
    assert str(path) in line
    assert f"at offset {offset}" in line
    assert "Ways out" in line
    flip(path, offset + 200)
    assert path.read_bytes() == before, "a refused start must change nothing"


def test_rot_in_the_last_record(copy: ReplicaProcesses) -> None:
    """After a graceful stop the last record counts as committed: it is never cut as torn."""
    path = segment(copy)
    offset = record_offsets(path)[-1]
    flip(path, offset + 200)
    damaged = path.read_bytes()
    line = copy.refusal()
    assert f"at offset {offset}" in line
    assert path.read_bytes() == damaged, "a refused start must change nothing"


def test_one_damaged_superblock_copy(copy: ReplicaProcesses) -> None:
    """One bad copy of four is repaired at the start."""
    path = copy.data / "superblock"
    flip(path, COPY_BYTES + 100)
    damaged = path.read_bytes()[COPY_BYTES : 2 * COPY_BYTES]
    copy.start()
    with copy.root() as root:
        assert root_sees(root, STREAMS[0])
    assert copy.stop()[COORDINATOR] == 0
    data = path.read_bytes()
    assert data[COPY_BYTES : 2 * COPY_BYTES] != damaged
    copies = [data[at + 32 : at + COPY_BYTES] for at in range(0, len(data), COPY_BYTES)]
    assert len(set(copies)) == 1


def test_lost_superblock(copy: ReplicaProcesses) -> None:
    """Without two equal copies, or without the file, the refusal to start says what to do."""
    path = copy.data / "superblock"
    intact = path.read_bytes()
    for number in range(4):
        flip(path, number * COPY_BYTES + 100)
    line = copy.refusal()
    assert "needs 2 equal copies" in line
    assert "superblock and journal from one backup" in line
    path.write_bytes(b"")
    assert str(path) in copy.refusal()
    path.unlink()
    copy.start(*SERVICE_NAMES)
    copy.spawn(COORDINATOR)
    assert copy.wait(COORDINATOR) == 2
    assert "superblock" in copy.errors(COORDINATOR)
    path.write_bytes(intact)
    copy.start(COORDINATOR)
    with copy.root() as root:
        assert root_sees(root, STREAMS[-1])
