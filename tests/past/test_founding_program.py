"""What `python -m past.founding` refuses, each with what is wrong and what would be right."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from past.founding.__main__ import main
from testkit.journal_builders import append_unchecked, chain, create, filled, place
from testkit.memory_storage import MemoryStorage
from tests.past.founding_questions import question
from tests.past.test_restored_cluster import CLUSTER_ID, restored, state_of_history
from tests.viewstamp.journals.dumped_journals import LONE, dump
from viewstamp.api.log.v1 import log_pb2
from viewstamp.format.record import FRAME_BYTES
from viewstamp.framing import frame
from viewstamp.limits import FEATURE_LEVEL_MAX

MINUTE_US = 60_000_000
UNKNOWN_CODE = 9_999
# Returns the last line of what the program says about a source.
Program: TypeAlias = Callable[..., dict[str, Any]]


@pytest.fixture
def program(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Program:
    """The program, in this process; it is asked for one replica in a new directory."""

    def run(source: Path, **changed: Any) -> dict[str, Any]:
        asked = question(source, tmp_path / "new", **changed)
        is_done = main([asked]) == 0
        last: dict[str, Any] = json.loads(capsys.readouterr().out.splitlines()[-1])
        assert is_done == ("report" in last)
        assert (tmp_path / "new").exists() == (is_done and not changed.get("dry_run"))
        return last

    return run


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a replica."""
    path = tmp_path_factory.mktemp("founding") / "source"
    restored(state_of_history(6), path, 1)
    return path


@pytest.mark.parametrize(
    ("changed", "is_usage", "says"),
    [
        ({"generation": 77}, True, "no manifest of generation 77"),
        ({"generation": 2, "to_revision": 1}, True, "behind the end that is wanted"),
        ({"to_revision": 1 << 40}, True, "the log ends at revision"),
        ({"cluster_id": CLUSTER_ID.hex()}, True, "is the lost one"),
    ],
)
def test_what_no_source_can_be_asked_for(
    program: Program, source: Path, changed: dict[str, Any], is_usage: bool, says: str
) -> None:
    """A request that cannot be right names what is wrong, and writes nothing."""
    said = program(source, **changed)
    assert says in said["message"]
    assert (said["is_usage"], bool(said["next_step"])) == (is_usage, True)


def test_a_log_with_holes_is_not_taken_silently(program: Program, tmp_path: Path) -> None:
    """A log that lacks entries is refused with their numbers."""
    storage, entries = MemoryStorage(), chain(5)
    journal = create(storage, replica_count=3)
    append_unchecked(journal, [*entries[:2], *entries[3:]])
    journal.close()
    said = program(dump(storage, tmp_path))
    assert said["reason"] == "LOG_LACKS_ENTRIES"
    assert "lacks entries 3 to 3" in said["message"]


def test_a_damaged_entry_is_not_left_out_silently(program: Program, tmp_path: Path) -> None:
    """Damage that may have been the last acknowledged entry is told with its place."""
    storage = MemoryStorage()
    filled(storage, [chain(2)])
    data = dump(storage, tmp_path, replace(LONE, commit_max=1, journal_sequence=2))
    spoiled = data / "journal" / Path(place(1)[0]).name
    content = bytearray(spoiled.read_bytes())
    content[place(1)[1] + FRAME_BYTES + 130] ^= 1
    spoiled.write_bytes(content)
    said = program(data)
    assert said["reason"] == "LOG_LACKS_ENTRIES"
    assert "is damaged where entries may have been: segment 1 at offset" in said["message"]


def test_a_directory_without_its_journal_is_told(
    program: Program, source: Path, tmp_path: Path
) -> None:
    """A replica's directory whose journal is gone does not pass for a snapshot alone."""
    shutil.copytree(source, tmp_path / "source")
    shutil.rmtree(tmp_path / "source" / "journal")
    assert "without its journal" in program(tmp_path / "source")["message"]
    told = program(tmp_path / "source", accept_gaps=True, dry_run=True)
    assert told["report"]["log_entries"] == 0


def test_an_end_before_everything_is_refused(program: Program, tmp_path: Path) -> None:
    """A time before the first entry leaves nothing to begin with."""
    storage = MemoryStorage()
    filled(storage, [chain(2)])
    said = program(dump(storage, tmp_path, LONE), to_time_us=MINUTE_US)
    assert "holds nothing up to the end" in said["message"]


def unknown_command() -> bytes:
    """Return the body of an entry with a command of a method that no build has."""
    span = log_pb2.LoggedSpan(code=UNKNOWN_CODE, count=1, items=frame(b""))
    return frame(log_pb2.LoggedRequest(spans=[span]).SerializeToString())


@pytest.mark.parametrize(
    ("level", "says"),
    [
        (FEATURE_LEVEL_MAX + 1, f"op 1 is of feature level {FEATURE_LEVEL_MAX + 1}"),
        (FEATURE_LEVEL_MAX, f"the log holds code {UNKNOWN_CODE}"),
    ],
)
def test_a_log_of_a_later_build_is_refused(
    program: Program, tmp_path: Path, level: int, says: str
) -> None:
    """An entry of a level or with a method that this build does not know names the build to use."""
    storage = MemoryStorage()
    filled(storage, [chain(1, bodies={1: unknown_command()}, feature_level=level)])
    said = program(dump(storage, tmp_path, LONE))
    assert (said["reason"], says in said["message"]) == ("UNUSABLE_SOURCE", True)


def test_a_mount_is_no_target(
    program: Program, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing can be moved over the root of a file system, which is told before anything is read.

    Only whoever may mount can have a real one, so the look at it is replaced.
    """
    monkeypatch.setattr(Path, "is_mount", lambda path: path.name == "new")
    said = program(source)
    assert "is the root of a file system" in said["message"]
