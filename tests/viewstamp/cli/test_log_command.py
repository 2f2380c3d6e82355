"""`viewstamp log` on journals that the real code wrote."""

from __future__ import annotations

import json
import os
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from coordinator.journal import Journal
from coordinator.storage import FileStorage
from testkit.journal_builders import (
    CLUSTER_ID,
    SEGMENT_BYTES,
    append_unchecked,
    chain,
    create,
    filled,
    place,
    prepare,
)
from testkit.memory_storage import MemoryStorage
from tests.viewstamp.cli.conftest import CommandLine
from tests.viewstamp.journals.dumped_journals import LONE, MEMBER, dump, live_entries_of
from tests.viewstamp.journals.sample_log import HASH, sample
from viewstamp.format.record import FRAME_BYTES, SECTOR_BYTES
from viewstamp.format.superblock import SuperblockState
from viewstamp.journals.directory_writers import writer_of
from viewstamp.journals.log_entries import LogEntryRecord, read_records
from viewstamp.journals.log_reading import read_log
from viewstamp.views import EPOCH_SHIFT

IN_BODY = FRAME_BYTES + 130
GOLDEN = """\
op  view  revisions  time                  checksum  kind                bytes  state
 1     1  1          2023-11-14 22:13:20Z  CHECKSUM  founding               53
    1 Found internal {"root_password_hash": "<secret>"}
 2     1  2          2023-11-14 22:13:20Z  CHECKSUM  sessions               32
    2 RegisterSession user 7 {"nonce": "<16 bytes>"}
 3     1  3          2023-11-14 22:13:20Z  CHECKSUM  streams                29
    3 CreateStream user 7 session 2 request 1 {"name": "shop\\u001b[2J"}
 4     1  4          2023-11-14 22:13:20Z  CHECKSUM  users                  55
    4 CreateUser user 7 session 2 request 2 {"username": "alice", "password_hash": "<secret>"}
 5     1  5          2023-11-14 22:13:20Z  CHECKSUM  transaction            43
    5 Transact user 7 session 2 request 3 {}; CreateTopic {"stream": {"name": "shop"}, "name": \
"orders", "partitions_count": 4}
 6     1  6          2023-11-14 22:13:20Z  CHECKSUM  streams                25
    6 CreateStream user 7 session 2 request 4 refused before the log: UNAUTHENTICATED
 7     1  7          2023-11-14 22:13:20Z  CHECKSUM  snapshot cut           25
    7 BeginSnapshot internal {"generation": 1}
"""


@pytest.fixture
def command(tmp_path: Path) -> CommandLine:
    """The command line without any cluster."""
    return CommandLine("127.0.0.1:1", tmp_path)


def lines(command: CommandLine, data: Path, *options: str) -> list[dict[str, Any]]:
    """Return the lines that a program gets."""
    said = command("log", "--data", str(data), "--json", *options)
    return [json.loads(line) for line in said.out.splitlines()]


def files_of(path: Path) -> dict[str, tuple[bytes, int]]:
    """Return content and time of change of each file below a directory."""
    files = (file for file in path.rglob("*") if file.is_file())
    return {str(file): (file.read_bytes(), file.stat().st_mtime_ns) for file in files}


def test_a_log_is_shown_as_it_stands(command: CommandLine, tmp_path: Path) -> None:
    """Entries of all kinds are shown in order, with their commands, and without secrets."""
    storage = MemoryStorage()
    entries = filled(storage, [sample()], replica_count=3)
    data = dump(storage, tmp_path)
    before = files_of(data)

    said = command("log", "--data", str(data))

    expected = GOLDEN
    for entry in entries:
        expected = expected.replace("CHECKSUM", entry.checksum.hex()[:8], 1)
    assert (said.out, said.err, said.code) == (expected, "", 0)
    assert files_of(data) == before
    assert HASH not in said.out


def test_programs_get_every_entry_as_a_line(command: CommandLine, tmp_path: Path) -> None:
    """With --json each entry is an object with checksum, place and commands."""
    storage = MemoryStorage()
    entries = filled(storage, [sample()], replica_count=3)
    rows = lines(command, dump(storage, tmp_path))
    assert [row["checksum"] for row in rows] == [each.checksum.hex() for each in entries]
    assert [row["kind"] for row in rows[2:5]] == ["streams", "users", "transaction"]
    assert (rows[4]["segment"], rows[4]["offset"], rows[4]["sequence"]) == (2, 8192, 5)
    assert rows[3]["commands"] == [
        {
            "revision": 4,
            "method": "CreateUser",
            "code": 100,
            "user_id": 7,
            "is_internal": False,
            "session_id": 2,
            "request_number": 2,
            "fields": {"username": "alice", "password_hash": "<secret>"},
            "refused": None,
            "parts": [],
        }
    ]
    assert rows[4]["commands"][0]["parts"][0]["method"] == "CreateTopic"
    assert HASH not in json.dumps(rows)


@pytest.mark.parametrize(
    ("options", "ops"),
    [
        (("--from", "6"), [6, 7]),
        (("--to", "2"), [1, 2]),
        (("--from", "3", "--to", "5"), [3, 4, 5]),
        (("--count", "2"), [1, 2]),
        (("--from", "3", "--count", "2"), [3, 4]),
        (("--method", "CreateTopic"), [5]),
        (("--method", "CreateStream"), [3, 6]),
        (("--method", "CreateStream", "--count", "1"), [3]),
        (("--from", "100"), []),
    ],
)
def test_entries_are_chosen(
    command: CommandLine, tmp_path: Path, options: tuple[str, ...], ops: list[int]
) -> None:
    """Options choose entries by op, method and number."""
    storage = MemoryStorage()
    filled(storage, [sample()], replica_count=3)
    assert [row["op"] for row in lines(command, dump(storage, tmp_path), *options)] == ops


@pytest.mark.parametrize(
    ("state", "verdict", "words"),
    [
        (MEMBER, "lost", "fetches what is missing from other replicas"),
        (LONE, "fatal", "a start refuses the directory"),
        (None, "unknown", "without a superblock"),
    ],
)
def test_a_damaged_record_is_told(
    command: CommandLine,
    tmp_path: Path,
    state: SuperblockState | None,
    verdict: str,
    words: str,
) -> None:
    """A damaged record is named with op, place and what a start would do; the rest is shown."""
    storage = MemoryStorage()
    entries = filled(storage, [sample()[:4], sample()[4:]], replica_count=3)
    path, offset = place(1)
    storage.flip(path, offset + IN_BODY)
    data = dump(storage, tmp_path, state)

    rows = lines(command, data)
    said = command("log", "--data", str(data))

    assert [row.get("op") for row in rows] == [1, 2, 3, 4, 5, 6, 7, None]
    assert (rows[1]["record"], rows[1]["verdict"]) == ("damage", verdict)
    assert rows[1]["checksum"] == entries[1].checksum.hex()
    assert rows[-1] == {"record": "missing", "first_op": 2, "last_op": 2}
    assert said.code == 5
    damage = said.out.splitlines()[3]
    assert damage.startswith("! damaged record 2, op 2: prepare body checksum")
    assert f"(segment 1, offset {offset})" in damage and words in damage
    assert "! missing: op 2" in said.out


@pytest.mark.parametrize("state", [MEMBER, LONE])
def test_a_torn_tail_is_told(command: CommandLine, tmp_path: Path, state: SuperblockState) -> None:
    """A last group whose units were never written is torn, and entries behind it are cut off."""
    storage = MemoryStorage()
    filled(storage, [sample()[:4], sample()[4:]], replica_count=3)
    path, offset = place(5)
    content = bytearray(storage.content(path))
    content[offset : offset + SECTOR_BYTES] = bytes(SECTOR_BYTES)
    storage.replace(path, bytes(content))
    data = dump(storage, tmp_path, state)

    rows = lines(command, data)
    said = command("log", "--data", str(data))

    assert [(row["op"], row.get("state", row.get("verdict"))) for row in rows[-3:]] == [
        (5, "live"),
        (6, "torn"),
        (7, "cut off"),
    ]
    assert said.code == 5
    assert "it was never acknowledged, and a start cuts it off" in said.out
    assert "! missing" not in said.out


def test_a_replaced_entry_is_told(command: CommandLine, tmp_path: Path) -> None:
    """Entries that a later view replaced are shown as such, with the cut, and the log is whole."""
    storage = MemoryStorage()
    journal = create(storage, replica_count=3)
    old = chain(4)
    journal.append(old)
    journal.discard_after(2)
    new = chain(2, after=old[1], view=2)
    journal.append(new)
    journal.append([old[0]])
    journal.close()
    data = dump(storage, tmp_path)

    rows = lines(command, data)
    said = command("log", "--data", str(data))

    assert [(row["op"], row.get("view"), row.get("state")) for row in rows] == [
        (1, 1, "rewritten"),
        (2, 1, "live"),
        (3, 1, "replaced"),
        (4, 1, "replaced"),
        (2, None, None),
        (3, 2, "live"),
        (4, 2, "live"),
        (1, 1, "live"),
    ]
    assert said.code == 0
    assert "a view change took all entries above op 2 out of the log" in said.out
    assert "replaced: a view change took it out of the log" in said.out


def test_views_of_later_epochs_are_told_by_epoch(command: CommandLine, tmp_path: Path) -> None:
    """People see the number of the epoch and that of the view in it; programs the whole number."""
    storage, view = MemoryStorage(), (2 << EPOCH_SHIFT) + 3
    journal = create(storage, replica_count=3)
    old = chain(1)
    journal.append(old)
    journal.append(chain(1, after=old[0], view=view))
    journal.close()
    data = dump(storage, tmp_path)

    assert [row["view"] for row in lines(command, data)] == [1, view]
    told = command("log", "--data", str(data)).out.splitlines()
    assert [line.split()[1] for line in told[:3]] == ["view", "1", "2.3"]
    assert "of view 1 to 2.3" in command("log", "--data", str(data), "--summary").out


def test_a_broken_chain_is_told(command: CommandLine, tmp_path: Path) -> None:
    """Two intact entries that do not fit together are damage."""
    storage = MemoryStorage()
    journal = create(storage, replica_count=3)
    append_unchecked(journal, [*chain(2), prepare(3, bytes(range(16)))])
    journal.close()
    said = command("log", "--data", str(dump(storage, tmp_path)))
    assert said.code == 5
    assert "! op 3 is intact, but is not the child of op 2" in said.out


def test_the_summary_tells_segments_and_superblock(command: CommandLine, tmp_path: Path) -> None:
    """The summary has ranges, the bytes of each segment, and the superblock in words."""
    storage = MemoryStorage()
    filled(storage, [sample()], replica_count=3)
    state = replace(MEMBER, view=4, log_view=3, commit_max=5, generation=2, voting_view=2)
    data = dump(storage, tmp_path, state)

    said = command("log", "--data", str(data), "--summary")
    values = command("log", "--data", str(data), "--summary", "--json").data

    assert said.code == 0
    for sentence in (
        "7 entries, op 1 to 7, of view 1 to 1",
        "7 commands, revision 1 to 7",
        "superblock: 4 of 4 copies agree",
        "superblock: replica 0, one of 3 voters",
        "superblock: in view 4, with the log of view 3: a view change is under way",
        "superblock: votes from view 2 on: it was added, or lost its disk before",
        "superblock: committed at least up to op 5",
        "superblock: restarts from snapshot 2",
    ):
        assert sentence in said.out.splitlines()
    assert [(each["records"], each["used_bytes"]) for each in values["segments"]] == [
        (3, 3 * SECTOR_BYTES),
        (3, 3 * SECTOR_BYTES),
        (1, SECTOR_BYTES),
        *[(0, 0)] * 2,
    ]
    assert (values["first_op"], values["last_op"], values["entries"]) == (1, 7, 7)
    assert values["superblock"]["cluster_id"] == CLUSTER_ID.hex()


def test_a_damaged_copy_of_the_superblock_is_told(command: CommandLine, tmp_path: Path) -> None:
    """One bad copy is named; without two good ones nothing is in force."""
    storage = MemoryStorage()
    filled(storage, [sample()], replica_count=3)
    data = dump(storage, tmp_path)
    superblock = data / "superblock"
    content = bytearray(superblock.read_bytes())
    content[40] ^= 1
    superblock.write_bytes(content)
    said = command("log", "--data", str(data), "--summary")
    assert said.code == 5
    assert "copy 0 of the superblock is damaged: a start writes it anew" in said.err
    assert "superblock: 3 of 4 copies agree; the others are damaged" in said.out

    for copy in (1, 2):
        content[copy * 4096 + 40] ^= 1
    superblock.write_bytes(content)
    said = command("log", "--data", str(data), "--summary")
    assert said.code == 5
    assert "no two copies of the superblock agree" in said.err


def test_records_that_the_superblock_knows_are_missed(command: CommandLine, tmp_path: Path) -> None:
    """A journal without records that the superblock knows to be durable has lost them."""
    storage = MemoryStorage()
    filled(storage, [sample()], replica_count=3)
    data = dump(storage, tmp_path, replace(MEMBER, journal_sequence=9, commit_max=8))
    rows = lines(command, data)
    assert [(row["first_sequence"], row["last_sequence"]) for row in rows[7:8]] == [(8, 9)]
    assert rows[8:] == [{"record": "missing", "first_op": 8, "last_op": 8}]


def test_a_running_writer_is_read_beside(command: CommandLine, tmp_path: Path) -> None:
    """While a writer appends, each reading is a prefix of its log without damage, and the command
    names the process."""
    (tmp_path / "data").mkdir()
    journal, _ = Journal.create(
        FileStorage(),
        str(tmp_path / "data/journal"),
        cluster_id=CLUSTER_ID,
        replica_id=0,
        replica_count=3,
        segment_bytes=SEGMENT_BYTES,
    )
    entries = chain(120, bodies={op: bytes([op]) * 700 for op in range(1, 120, 7)})
    began, readings = threading.Event(), []

    def write() -> None:
        for start in range(0, len(entries), 3):
            journal.append(entries[start : start + 3])
            began.set()

    writer = threading.Thread(target=write)
    writer.start()
    began.wait()
    while writer.is_alive():
        reading = read_log(tmp_path / "data")
        readings.append(reading)
        shown = live_entries_of(reading.survey)
        assert shown == {each.op: each.checksum for each in entries[: len(shown)]}
        assert reading.survey.open_findings == [] and reading.missing_ops == []
    writer.join()
    said = command("log", "--data", str(tmp_path / "data"), "--from", "119")
    journal.close()
    assert len(readings) > 0 and {each.writer for each in readings} == {os.getpid()}
    assert f"warning: ACTIVE_WRITER: process {os.getpid()} uses the directory" in said.err
    assert writer_of(tmp_path / "data") is None
    assert live_entries_of(read_log(tmp_path / "data").survey).keys() == set(range(1, 121))


def test_a_segment_that_is_dropped_meanwhile_is_told(command: CommandLine, tmp_path: Path) -> None:
    """A segment that goes between the two walks is named, and the others are shown."""
    storage = MemoryStorage()
    filled(storage, [sample()], replica_count=3)
    data = dump(storage, tmp_path)
    reading = read_log(data)
    (data / "journal/segment-0000000000000001.log").unlink()
    records = [each for each in read_records(reading.survey) if isinstance(each, LogEntryRecord)]
    assert [each.prepare.op for each in records] == [4, 5, 6, 7]
    assert reading.survey.dropped_segments == [1]
    said = command("log", "--data", str(data))
    assert (said.code, len(lines(command, data))) == (0, 4)


@pytest.mark.parametrize(
    ("options", "code", "text"),
    [
        (("--data", "{}/none"), 2, "error: NO_JOURNAL: there is no journal in"),
        (("--data", "{}/data", "--method", "Bogus"), 2, "error: UNKNOWN_METHOD"),
        (("--data", "{}/data", "--from", "3", "--to", "2"), 2, "--to 2 lies before --from 3"),
        (("--data", "{}/data", "--summary", "--count", "2"), 2, "give it alone"),
        (("--data", "{}/data", "-o", "name"), 2, "NO_NAMES"),
    ],
)
def test_wrong_usage_is_told(
    command: CommandLine, tmp_path: Path, options: tuple[str, ...], code: int, text: str
) -> None:
    """Wrong options are errors with a next step."""
    storage = MemoryStorage()
    filled(storage, [sample()], replica_count=3)
    dump(storage, tmp_path)
    said = command("log", *(each.format(tmp_path) for each in options))
    assert said.code == code
    assert text in said.err
