"""`viewstamp restore` on the directory of a replica: what it tells, writes and refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

import pytest

from tests.past.test_restored_cluster import CLUSTER_ID, restored, state_of_history
from tests.viewstamp.cli.conftest import CommandLine

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
        (("--into", "{new}", "--to-revision", "1"), REFUSED, "LOG_LACKS_ENTRIES"),
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
