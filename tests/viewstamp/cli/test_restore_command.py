"""`viewstamp restore` on the directory of a replica: what it tells, writes and refuses."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest

from testkit.journal_builders import append_unchecked, chain, create, filled, place
from testkit.memory_storage import MemoryStorage
from tests.past.test_restored_cluster import CLUSTER_ID, restored, state_of_history
from tests.viewstamp.cli.conftest import CommandLine
from tests.viewstamp.journals.dumped_journals import LONE, dump
from viewstamp.format.record import FRAME_BYTES

USAGE: Final = 2
REFUSED: Final = 1


@pytest.fixture
def command(tmp_path: Path) -> CommandLine:
    """The command line without any cluster."""
    return CommandLine("127.0.0.1:1", tmp_path)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a replica; it was restored itself, and is as good as any other."""
    path = tmp_path_factory.mktemp("restore") / "source"
    restored(state_of_history(6), path, 1)
    return path


def test_a_dry_run_tells_and_writes_nothing(
    command: CommandLine, source: Path, tmp_path: Path
) -> None:
    """A dry run tells the same numbers as the restore behind it, and makes no directory."""
    into = tmp_path / "new"
    options = ("restore", str(source), "--into", str(into), "--replicas", "2")
    planned = command(*options, "--dry-run")
    assert "would be restored" in planned.out
    assert planned.out.endswith("nothing was written\n")
    assert not into.exists()

    report = json.loads(command(*options, "--json").out)
    assert report["directories"] == [f"{into}/replica-0", f"{into}/replica-1"]
    assert f"newest revision that is kept        {report['revision']}\n" in planned.out
    assert f"next revision                       {report['next_revision']}\n" in planned.out
    assert report["is_written"] and (into / "replica-1" / "superblock").exists()
    assert report["from_cluster_id"] == CLUSTER_ID.hex()


@pytest.mark.parametrize(
    ("options", "code", "says"),
    [
        (("--into", "{source}"), USAGE, "TARGET_NOT_EMPTY"),
        (("--into", "{new}", "--generation", "77"), USAGE, "no manifest of generation 77"),
        (("--into", "{new}", "--to-revision", "1"), REFUSED, "LOG_LACKS_ENTRIES"),
        (("--into", "{new}", "--generation", "2", "--to-revision", "1"), USAGE, "an older one"),
        (("--into", "{new}", "--to-revision", f"{1 << 40}"), USAGE, "the log ends at revision"),
        (("--into", "{new}", "--cluster-id", CLUSTER_ID.hex()), USAGE, "is the lost one"),
    ],
)
def test_what_cannot_be_restored_is_refused(
    command: CommandLine, source: Path, tmp_path: Path, options: list[str], code: int, says: str
) -> None:
    """A request that cannot be right names what is wrong and what would be, and writes nothing."""
    places = {"source": source, "new": tmp_path / "new"}
    said = command("restore", str(source), *(each.format(**places) for each in options))
    assert says in said.err
    assert said.code == code
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--cluster-id", "ABC"), "is not 32 hexadecimal digits"),
        (("--only-replica", "3", "--replicas", "3"), "the first is 0"),
        (("--only-replica", "1", "--replicas", "3"), "needs --cluster-id"),
    ],
)
def test_numbers_must_fit(command: CommandLine, options: tuple[str, ...], says: str) -> None:
    """Options that contradict one another are refused before anything is read."""
    said = command("restore", "nowhere", "--into", "new", *options)
    assert (said.code, says in " ".join(said.err.split())) == (USAGE, True)


def test_a_log_with_holes_is_not_taken_silently(command: CommandLine, tmp_path: Path) -> None:
    """A log that lacks entries is refused with their numbers."""
    storage, entries = MemoryStorage(), chain(5)
    journal = create(storage, replica_count=3)
    append_unchecked(journal, [*entries[:2], *entries[3:]])
    journal.close()
    data = dump(storage, tmp_path)
    said = command("restore", str(data), "--into", str(tmp_path / "new"))
    assert (said.code, "LOG_LACKS_ENTRIES" in said.err) == (REFUSED, True)
    assert "lacks entries 3 to 3" in said.err


def test_a_damaged_entry_is_not_left_out_silently(command: CommandLine, tmp_path: Path) -> None:
    """Damage that may have been the last acknowledged entry is told with its place."""
    storage = MemoryStorage()
    filled(storage, [chain(2)])
    state = replace(LONE, commit_max=1, journal_sequence=2)
    data = dump(storage, tmp_path, state)
    spoiled = data / "journal" / Path(place(1)[0]).name
    content = bytearray(spoiled.read_bytes())
    content[place(1)[1] + FRAME_BYTES + 130] ^= 1
    spoiled.write_bytes(content)
    said = command("restore", str(data), "--into", str(tmp_path / "new"))
    assert (said.code, "LOG_LACKS_ENTRIES" in said.err) == (REFUSED, True)
    assert "is damaged where entries may have been: segment 1 at offset" in said.err


def test_a_directory_without_its_journal_is_told(
    command: CommandLine, source: Path, tmp_path: Path
) -> None:
    """A replica's directory whose journal is gone does not pass for a snapshot alone."""
    shutil.copytree(source, tmp_path / "source")
    shutil.rmtree(tmp_path / "source" / "journal")
    said = command("restore", str(tmp_path / "source"), "--into", str(tmp_path / "new"))
    assert (said.code, "without its journal" in said.err) == (REFUSED, True)
    assert command(
        *("restore", str(tmp_path / "source"), "--into", str(tmp_path / "new")),
        *("--accept-gaps", "--dry-run"),
    ).out.endswith("nothing was written\n")


def test_an_end_before_everything_is_refused(command: CommandLine, tmp_path: Path) -> None:
    """A time before the first entry leaves nothing to begin with."""
    storage = MemoryStorage()
    filled(storage, [chain(2)])
    data = dump(storage, tmp_path, LONE)
    options = ("--into", str(tmp_path / "new"), "--to-time", "1970-01-01T00:00:01Z")
    said = command("restore", str(data), *options)
    assert (said.code, "holds nothing up to the end" in said.err) == (USAGE, True)
