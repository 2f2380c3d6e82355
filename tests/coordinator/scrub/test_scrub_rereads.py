"""What the scrubber does about damage that stands: what it says of a restart, and what it reads."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from coordinator.journal import JournalError
from coordinator.scrub.journal_scrub import READ_AGAIN_MS
from coordinator.scrub.ports import ScrubAlarm
from coordinator.scrub.remedies import DamagedPart
from coordinator.snapshot.errors import CopyNotWritten
from coordinator.snapshot.layout import layer_file
from coordinator.storage import FileStorage
from testkit.generation_builders import COPY_DIRECTORIES, entities
from testkit.journal_builders import chain, place, reopen, segment
from tests.coordinator.scrub.scrub_trial import ENTRIES, NEWEST, InlineWriter, ScrubTrial
from tests.coordinator.scrub.test_scrub_journal import rot_record
from viewstamp.format.manifest import section_of

CUT_OP = 3


@pytest.mark.parametrize("op", [1, 2, CUT_OP])
async def test_a_lone_replica_is_not_invited_to_a_restart_that_it_refuses(op: int) -> None:
    """Damage that a snapshot covers still keeps a lone replica from starting; its alarm says so."""
    trial = ScrubTrial(replica_count=1)
    trial.cut_op = CUT_OP
    rot_record(trial, op)
    await trial.passes()
    (text,) = trial.alarms.texts(ScrubAlarm.JOURNAL_DAMAGED)
    assert "do not restart it before this alarm has ended" in text
    trial.journal.close()
    with pytest.raises(JournalError):
        reopen(
            trial.storage,
            replica_count=1,
            commit_max=ENTRIES,
            replay_op=CUT_OP + 1,
            base_checksum=chain(ENTRIES)[CUT_OP - 1].checksum,
        )


@pytest.mark.parametrize("replica_count", [1, 3])
async def test_a_bad_sector_is_read_again_seldom(
    replica_count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rechecks ask the index; the disk is asked once an hour, and never in the journal's thread."""
    trial = ScrubTrial(replica_count=replica_count)
    trial.cut_op = ENTRIES
    bad, offset = place(0)
    in_writer: list[bool] = []
    reads: dict[bool, int] = {True: 0, False: 0}

    async def called(_: InlineWriter, function: Callable[[], object]) -> object:
        in_writer.append(True)
        try:
            return function()
        finally:
            in_writer.pop()

    def check_read(path: str, start: int, size: int) -> None:
        if path == bad and start <= offset < start + size:
            reads[bool(in_writer)] += 1
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(InlineWriter, "call", called)
    monkeypatch.setattr(trial.storage, "check_read", check_read)
    await trial.until(lambda: trial.tally.standing[DamagedPart.COVERED_RECORD] == 1)
    before, passes = reads[False], trial.tally.passes
    await trial.passes()
    assert trial.now_ms < READ_AGAIN_MS
    # Each pass reads the segment and looks a second time; rechecks add nothing.
    assert reads[False] - before <= 2 * (trial.tally.passes - passes)
    assert not reads[True]


async def test_a_layer_that_people_brought_back_is_believed() -> None:
    """A snapshot goes on from it, though the scrubber has not come by again; not before."""
    trial = ScrubTrial(replica_count=1)
    manifest = trial.files.stored_manifest(NEWEST)
    assert manifest is not None
    digest = section_of(manifest, 2).layers[0].digest
    name = layer_file(digest)
    path = f"{COPY_DIRECTORIES[0]}/{name}"
    good = trial.storage.content(path)
    trial.rot(name)
    await trial.until(lambda: trial.tally.standing[DamagedPart.FILE] == 1)
    with pytest.raises(CopyNotWritten):
        trial.sections.write(3, entities(3, 2))
    trial.storage.replace(path, good)
    trial.sections.write(4, entities(3, 2))
    assert not trial.files.unsound.has(digest)
    assert trial.is_whole(name)


def test_advice_that_the_system_does_not_take_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file system without such advice does not end the process."""

    def refused(*_: object) -> None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    storage = FileStorage()
    file = storage.create(str(tmp_path / segment(1).rpartition("/")[2]))
    monkeypatch.setattr(os, "posix_fadvise", refused)
    file.write(0, b"bytes")
    file.drop_cached(0, 5)
    assert file.read(0, 5) == b"bytes"
    file.close()
