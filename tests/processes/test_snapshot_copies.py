"""Copies of snapshot files that are bad, lost or foreign are repaired and reported, or refused."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.processes import snapshots
from tests.processes.processes import (
    ROOT,
    ReplicaProcesses,
    eventually,
    short_directory,
)
from tests.processes.snapshots import copy_directories, files_below, layers, manifest
from tests.processes.test_start_refusals import flip, with_flags

pytestmark = [pytest.mark.long, pytest.mark.xdist_group("processes-snapshot-copies")]

COPY_BAD = "ALARM_KIND_SNAPSHOT_COPY_BAD"
BULKS = 60


@pytest.fixture(scope="module")
def bootstrapped() -> Iterator[tuple[ReplicaProcesses, list[str]]]:
    """A stopped replica with two generations and a journal after op 1; and its digests.

    Tests copy it, and do not change it.
    """
    with short_directory() as directory:
        replica = ReplicaProcesses(directory)
        replica.start()
        try:
            with replica.root() as root:
                root.create_stream("first")
                snapshots.take_and_adopt(replica, root)
                root.create_user("second", "password")
                snapshots.write_bulk(root, BULKS)
                snapshots.take_and_adopt(replica, root)
                snapshots.write_bulk(root, BULKS)
                root.create_stream("behind")
                digests = root.digests()
        finally:
            codes = replica.stop()
        assert set(codes.values()) == {0}
        yield replica, digests


@pytest.fixture
def copy(bootstrapped: tuple[ReplicaProcesses, list[str]]) -> Iterator[ReplicaProcesses]:
    """A copy of the bootstrapped replica, stopped at the end."""
    with short_directory() as directory:
        replica = bootstrapped[0].copy_to(directory)
        yield replica
        replica.stop()


def spoil_layer(copy: ReplicaProcesses) -> tuple[str, str]:
    """Flip a byte of one copy of a layer; return the file and the word that the log must have."""
    path = layers(copy_directories(copy)[1], 2)[0]
    flip(path, path.stat().st_size // 2)
    return f"layers/{path.name}", "repaired"


def spoil_manifest(copy: ReplicaProcesses) -> tuple[str, str]:
    """Flip a byte of one copy of the manifest."""
    path = manifest(copy_directories(copy)[0], 2)
    flip(path, path.stat().st_size // 2)
    return f"manifests/{path.name}", "repaired"


def delete_layer(copy: ReplicaProcesses) -> tuple[str, str]:
    """Delete one copy of a layer."""
    path = layers(copy_directories(copy)[1], 2)[-1]
    path.unlink()
    return f"layers/{path.name}", "missing"


def delete_directory(copy: ReplicaProcesses) -> tuple[str, str]:
    """Delete everything of one copy, as a new disk would."""
    directory = copy_directories(copy)[2]
    name = layers(directory, 2)[1].name
    shutil.rmtree(directory)
    return f"layers/{name}", "missing"


def verify_by_command(copy: ReplicaProcesses, token: str) -> subprocess.CompletedProcess[str]:
    """Run `viewstamp snapshot verify` against the running replica."""
    command = [sys.executable, "-m", "viewstamp.cli", "--json", "--address", copy.address]
    return subprocess.run(
        [*command, "snapshot", "verify", "0"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        env={"VIEWSTAMP_ACCESS_TOKEN": token, "PYTHONPATH": str(ROOT)},
    )


def test_bad_copies_at_the_start(
    copy: ReplicaProcesses, bootstrapped: tuple[ReplicaProcesses, list[str]]
) -> None:
    """Damage or loss in one or two copies, even of a whole disk, is repaired and reported."""
    intact = contents(copy_directories(copy)[0])
    expected = [
        spoil_layer(copy),
        spoil_manifest(copy),
        delete_layer(copy),
        delete_directory(copy),
    ]
    copy.start()
    with copy.root() as root:
        assert root.digests() == bootstrapped[1]
        alarms = root.status().alarms
        for file, what in expected:
            (message,) = [alarm.message for alarm in alarms if file in alarm.message]
            assert what in message
            assert "repaired" in message
        assert set(root.alarms()) == {COPY_BAD}
        told = snapshots.verified(root)
        assert told[-1].is_intact and not told[-1].problems
        assert all(list(each.copies) == ["intact"] * 3 for each in told[:-1])
    copy.stop()
    for directory in copy_directories(copy):
        assert contents(directory) == intact


def contents(directory: Path) -> dict[str, bytes]:
    """Return what is in a copy of the newest generation, and which file is missing."""
    files = [*layers(directory, 2), manifest(directory, 2)]
    return {file.name: file.read_bytes() if file.exists() else b"" for file in files}


def test_verify_by_command(copy: ReplicaProcesses) -> None:
    """`viewstamp snapshot verify` repairs a running replica's copies, and reports each repair."""
    copy.start()
    with copy.root() as root:

        def spoil_and_verify() -> list[str] | None:
            file, _ = spoil_layer(copy)
            done = verify_by_command(copy, root.token)
            assert done.returncode == 0, done.stderr
            said = json.loads(done.stdout)
            assert said["is_intact"] and not said["problems"]
            (found,) = [each["copies"] for each in said["files"] if each["file"] == file]
            # The compaction that begins with the process may read, and repair, the file first.
            return None if set(found) == {"intact"} else list(found)

        found = eventually(spoil_and_verify)
        assert ["repaired" in each for each in found] == [False, True, False]
        assert root.alarms() == [COPY_BAD]
        again = json.loads(verify_by_command(copy, root.token).stdout)
        assert all(set(each["copies"]) == {"intact"} for each in again["files"])


def everything(copy: ReplicaProcesses) -> dict[str, bytes]:
    """Return every file of a replica except leftovers and locks, which name their holder."""
    found = files_below(copy.data)
    return {name: data for name, data in found.items() if not name.endswith(("LOCK", ".tmp"))}


@pytest.mark.parametrize("which", ["layer", "manifest", "deleted", "directories"])
def test_no_good_copy(copy: ReplicaProcesses, which: str) -> None:
    """Without a good copy the replica refuses to start, names file and remedy, changes nothing."""
    directories = copy_directories(copy)
    path = manifest(directories[0], 2) if which == "manifest" else layers(directories[0], 2)[0]
    name = str(path.relative_to(directories[0]))
    for directory in directories:
        if which == "directories":
            shutil.rmtree(directory)
        elif which == "deleted":
            (directory / name).unlink()
        else:
            flip(directory / name, path.stat().st_size // 2)
    before = everything(copy)
    line = copy.refusal()
    says = "is a disk not mounted?" if which == "directories" else f"no copy of {name} is intact"
    assert says in line
    assert all(str(directory) in line for directory in directories)
    assert "Ways out" in line
    assert everything(copy) == before


def test_wrong_directories(
    copy: ReplicaProcesses, bootstrapped: tuple[ReplicaProcesses, list[str]]
) -> None:
    """Copy directories in another order, foreign or named twice, are refused, each by its fault."""
    first, second, third = copy_directories(copy)
    foreign = copy.directory / "foreign"
    foreign.mkdir()
    (foreign / "letters.txt").write_text("mine")
    alias = copy.directory / "alias"
    alias.symlink_to(first)
    cases: list[tuple[Sequence[Path], str]] = [
        ((second, first, third), r"copy-1 belongs to copy 1, but is configured as copy 0"),
        ((first, foreign, third), r"foreign has files but no IDENTITY"),
        ((first, alias, third), r"alias is another name of one of the other copy directories"),
        ((first, first, third), r"give it 3 times, each another directory"),
    ]
    before = everything(copy)
    for directories, says in cases:
        flags = [f"--snapshot-directory={directory}" for directory in directories]
        assert re.search(says, with_flags(copy, *flags).refusal())
        assert everything(copy) == before
    assert {path.name for path in foreign.iterdir()} == {"letters.txt", "LOCK"}


def test_journal_of_another_history(
    copy: ReplicaProcesses, bootstrapped: tuple[ReplicaProcesses, list[str]]
) -> None:
    """A journal with another command at the snapshot's cut is refused."""
    with short_directory() as directory:
        other = bootstrapped[0].copy_to(directory)
        other.start()
        try:
            with other.root() as root:
                for number in range(4):
                    root.create_stream(f"never-{number}")
        finally:
            other.stop()
        copy.start()
        with copy.root() as root:
            snapshots.take_and_adopt(copy, root)
        copy.stop()
        shutil.rmtree(copy.data / "journal")
        shutil.copytree(other.data / "journal", copy.data / "journal")
    before = everything(copy)
    line = copy.refusal()
    assert "snapshot 3 was cut at op" in line
    assert "they are of different histories; bring back both from one backup" in line
    assert everything(copy) == before


def test_journal_that_begins_behind_the_snapshot(copy: ReplicaProcesses) -> None:
    """A journal without the record after the cut is refused: a replay would leave commands out."""
    paths = sorted((copy.data / "journal").glob("segment-*.log"))
    numbers = snapshots.segments(copy)
    assert numbers[0] > 1, "the bootstrapped replica has truncated its journal"
    while len(paths) > 2:
        paths.pop(0).unlink()
    before = everything(copy)
    line = copy.refusal()
    assert str(copy.data / "journal") in line
    assert "a record is missing" in line
    assert "Ways out" in line
    assert everything(copy) == before


def test_journal_that_is_gone(copy: ReplicaProcesses) -> None:
    """A replica with a snapshot and without a journal is refused, and begins no new journal."""
    shutil.rmtree(copy.data / "journal")
    before = everything(copy)
    line = copy.refusal()
    assert str(copy.data / "journal") in line
    assert everything(copy) == before
