"""Journals that the real code wrote, in a directory where `viewstamp log` reads them."""

from __future__ import annotations

from pathlib import Path

from coordinator.journal import Superblock
from coordinator.replica.data_directory import SUPERBLOCK_FILE
from coordinator.storage import FileStorage
from testkit.journal_builders import CLUSTER_ID
from testkit.memory_storage import MemoryStorage
from viewstamp.format.superblock import SuperblockState
from viewstamp.journals.journal_survey import EntryState, JournalSurvey
from viewstamp.journals.log_entries import LogEntryRecord, read_records

MEMBER = SuperblockState(CLUSTER_ID, 0, 3, view=1, log_view=1, commit_max=0, generation=0)
LONE = SuperblockState(CLUSTER_ID, 0, 1, view=1, log_view=1, commit_max=0, generation=0)


def dump(storage: MemoryStorage, path: Path, state: SuperblockState | None = MEMBER) -> Path:
    """Write a disk in memory, and a superblock beside its journal; return the data directory."""
    for name, content in storage.snapshot().items():
        file = path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
    data = path / "data"
    if state is not None:
        Superblock.create(FileStorage(), str(data / SUPERBLOCK_FILE), state).close()
    return data


def live_entries_of(survey: JournalSurvey) -> dict[int, bytes]:
    """Return the checksum of each entry that the reader shows as part of the log, by op."""
    return {
        record.prepare.op: record.prepare.checksum
        for record in read_records(survey)
        if isinstance(record, LogEntryRecord) and record.state is EntryState.LIVE
    }
