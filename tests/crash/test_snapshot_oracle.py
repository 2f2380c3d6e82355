"""A trial reads a stopped cluster's files: it finds damage, and assembles the whole log."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from coordinator.replica.data_directory import DirectoryOptions, open_replica
from testkit.load.generations import (
    UNCHANGED_SECTIONS,
    TakenGeneration,
    check_files,
    check_last_layers,
    taken_of,
)
from testkit.load.oracle import Check, Digests
from testkit.load.replay import (
    REPLAY_OPS_MAX,
    IncompleteLog,
    Start,
    check_starts,
    copy_from_scratch,
    starts_of,
)
from tests.viewstamp.snapshots.generations import SnapshotDirectory, flip, two_generations
from viewstamp.api.snapshots.v1 import snapshots_service_pb2 as snapshots_pb2
from viewstamp.format.manifest import sections
from viewstamp.format.superblock import (
    COPIES,
    COPY_BYTES,
    SuperblockState,
    decode_copy,
    encode_copy,
    seal_state,
)
from viewstamp.snapshots.copies import Copies, copy_directories
from viewstamp.snapshots.entities import SECTION_NAMES
from viewstamp.snapshots.generation import Generation
from viewstamp.telemetry import JsonFormatter

TAKEN = [TakenGeneration(number, "COMPLETED", True, 10 * number, 21, 900, "") for number in (1, 2)]
FAILED = replace(TAKEN[0], generation=3, state="FAILED", failure="its time was over")
STATE = SuperblockState(
    cluster_id=bytes(range(16)),
    replica_id=0,
    replica_count=1,
    view=8,
    log_view=8,
    commit_max=77,
    generation=5,
)


@pytest.fixture
def replica(tmp_path: Path) -> SnapshotDirectory:
    """A data directory with generations 1 and 2."""
    return two_generations(tmp_path / "data")


def damage_one_copy(replica: SnapshotDirectory) -> None:
    """Change a byte of one copy of a layer."""
    flip(next(replica.copies[1].glob("layers/*")))


def lose_a_manifest(replica: SnapshotDirectory) -> None:
    """Remove every copy of a manifest."""
    for copy in replica.copies:
        next(copy.glob("manifests/*1.manifest")).unlink()


def lose_everything(replica: SnapshotDirectory) -> None:
    """Remove the copy directories."""
    for copy in replica.copies:
        copy.rename(copy.with_name(f"lost-{copy.name}"))


def test_intact_files_are_accepted(replica: SnapshotDirectory) -> None:
    """Completed generations that verify are right, and one that failed has no files."""
    assert check_files([*TAKEN, FAILED], replica.path) == []


@pytest.mark.parametrize("damage", [damage_one_copy, lose_a_manifest, lose_everything])
def test_planted_damage_in_files_is_seen(
    replica: SnapshotDirectory, damage: Callable[[SnapshotDirectory], None]
) -> None:
    """One bad copy is reported, and so is a generation without files."""
    damage(replica)
    assert {violation.check for violation in check_files(TAKEN, replica.path)} == {Check.SNAPSHOTS}


@pytest.mark.parametrize("taken", [[], [FAILED], [*TAKEN, replace(TAKEN[0], state="CREATED")]])
def test_snapshots_must_be_completed_and_decided(
    replica: SnapshotDirectory, taken: list[TakenGeneration]
) -> None:
    """The check reports no snapshot at all, none that was completed, or one that is still open."""
    assert {violation.check for violation in check_files(taken, replica.path)} == {Check.SNAPSHOTS}


def digests_of(replica: SnapshotDirectory) -> dict[str, str]:
    """Return what generation 2 says, by section."""
    manifest = Generation(Copies(copy_directories(replica.path)), 2).manifest
    return {SECTION_NAMES[stage]: part.state_digest.hex() for stage, part in sections(manifest)}


def test_layers_of_the_same_state_are_accepted(replica: SnapshotDirectory) -> None:
    """Sessions may go on after the cut; the sections of the domains must agree with the digests."""
    live = Digests(9, {**digests_of(replica), "sessions": "of later"})
    assert check_last_layers(replica.path, 2, live) == []


@pytest.mark.parametrize("name", UNCHANGED_SECTIONS)
@pytest.mark.parametrize("digest", ["", "00" * 32])
def test_layers_of_another_state_are_seen(
    replica: SnapshotDirectory, name: str, digest: str
) -> None:
    """A section is reported if it differs from the cluster's digest, or if the cluster has none."""
    live = Digests(9, {**digests_of(replica), name: digest})
    assert [one.check for one in check_last_layers(replica.path, 2, live)] == [Check.LAYERS]


def test_a_last_snapshot_without_files_is_seen(replica: SnapshotDirectory) -> None:
    """A generation that does not exist has no digests to agree with."""
    live = Digests(9, digests_of(replica))
    assert [one.check for one in check_last_layers(replica.path, 3, live)] == [Check.LAYERS]


def test_a_snapshot_is_reported_by_its_sum() -> None:
    """Entities and bytes are sums over all sections; the reason of the snapshot has its name."""
    snapshot = snapshots_pb2.Snapshot(
        generation=4, state=snapshots_pb2.SNAPSHOT_STATE_COMPLETED, cut_revision=70
    )
    snapshot.tasks.add(entities=3, size_bytes=500)
    snapshot.tasks.add(entities=4, size_bytes=60)
    assert taken_of(snapshot, {3}) == TakenGeneration(4, "COMPLETED", False, 70, 7, 560, "")
    assert taken_of(snapshot, {4}).is_asked


def stopped_cluster(directory: Path, live: range, archived: range) -> tuple[Path, Path]:
    """Make what a replica leaves behind; return its directory and its archive."""
    data, archive = directory / "data", directory / "archive"
    for folder, numbers in ((data / "journal", live), (archive, archived)):
        folder.mkdir(parents=True)
        for number in numbers:
            (folder / f"segment-{number:016d}.log").write_text(f"segment {number}")
    sealed = seal_state(STATE, 40, bytes(16))
    (data / "superblock").write_bytes(b"".join(encode_copy(sealed, n) for n in range(COPIES)))
    for name in ("cluster.key", "root_password"):
        (data / name).write_text(name)
    (data / "snapshots").mkdir()
    return data, archive


def test_a_replay_from_scratch_gets_the_whole_log_alone(tmp_path: Path) -> None:
    """Archived segments return, snapshots do not, and the superblock names no snapshot."""
    data, archive = stopped_cluster(tmp_path, range(3, 6), range(1, 3))
    copy = tmp_path / "copy"
    copy_from_scratch(data, archive, copy)

    names = sorted(path.name for path in copy.iterdir())
    assert names == ["cluster.key", "journal", "root_password", "superblock"]
    segments = sorted((copy / "journal").iterdir())
    assert [path.read_text() for path in segments] == [f"segment {n}" for n in range(1, 6)]
    superblock = (copy / "superblock").read_bytes()
    copies = [
        decode_copy(superblock[number * COPY_BYTES :][:COPY_BYTES], number)
        for number in range(COPIES)
    ]
    assert {one.state for one in copies} == {replace(STATE, generation=0)}
    assert {one.sequence for one in copies} == {40}


@pytest.mark.parametrize(
    ("live", "archived"), [(range(3, 6), range(2, 3)), (range(2, 4), range(1, 3))]
)
def test_a_log_that_is_not_whole_is_refused(tmp_path: Path, live: range, archived: range) -> None:
    """A log that lacks a segment, or has one twice, is refused: its replay proves nothing."""
    data, archive = stopped_cluster(tmp_path, live, archived)
    with pytest.raises(IncompleteLog):
        copy_from_scratch(data, archive, tmp_path / "copy")


BOOTSTRAPPED, LATER, LAST = Start(0, 0, 0), Start(3, 1, 60), Start(9, 40, 2)


@pytest.mark.parametrize(
    ("starts", "restored", "is_seen"),
    [
        ([BOOTSTRAPPED, LATER, LAST], [LAST], False),
        ([BOOTSTRAPPED, Start(0, 1, 50), LAST], [LAST], False),
        ([BOOTSTRAPPED, LATER, Start(0, 1, 99)], [LAST], True),
        ([BOOTSTRAPPED], [], True),
        ([BOOTSTRAPPED], [Start(0, 1, 5)], True),
        ([BOOTSTRAPPED], [Start(9, 1, REPLAY_OPS_MAX + 1)], True),
    ],
)
def test_restarts_must_go_from_a_snapshot(
    starts: list[Start], restored: list[Start], is_seen: bool
) -> None:
    """The check reports a start from scratch after one from a snapshot, and a full replay."""
    found = {violation.check for violation in check_starts(starts, restored)}
    assert found == ({Check.RESTORED} if is_seen else set())


def test_starts_are_read_from_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The trial can read what the coordinator logs when it opens its directory."""
    options = DirectoryOptions(tmp_path / "data", replica_id=0, replica_count=1)
    with caplog.at_level("INFO"):
        open_replica(options).close()
    (tmp_path / "data" / "log").mkdir()
    formatter = JsonFormatter("coordinator")
    lines = ["not JSON", *map(formatter.format, caplog.records)]
    (tmp_path / "data" / "log" / "coordinator.log").write_text("\n".join(lines))
    assert starts_of(tmp_path / "data") == [BOOTSTRAPPED]
