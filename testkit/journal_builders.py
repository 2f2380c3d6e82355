"""Small journals for tests: a segment holds three records of one sector each."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from coordinator.journal import Journal, Recovery
from coordinator.journal.placement import prepare_content
from coordinator.storage import Storage
from testkit.memory_storage import MemoryStorage
from viewstamp.format.prepare import NO_PARENT, SealedPrepare, seal
from viewstamp.format.record import SECTOR_BYTES, IntactRecord
from viewstamp.format.scan import scan_segment

CLUSTER_ID = bytes(range(16))
OTHER_CLUSTER_ID = bytes(range(1, 17))
JOURNAL_ID = b"journal-identity"
DIRECTORY = "data/journal"
# No view that a test journals is above it.
LOG_VIEW = 99
RECORDS_PER_SEGMENT = 3
SEGMENT_BYTES = (1 + RECORDS_PER_SEGMENT) * SECTOR_BYTES


def prepare(
    op: int,
    parent: bytes,
    *,
    body: bytes | None = None,
    view: int = 1,
    commit: int = 0,
    cluster_id: bytes = CLUSTER_ID,
    feature_level: int = 1,
) -> SealedPrepare:
    """A prepare with one command whose body tells its op."""
    return seal(
        parent=parent,
        cluster_id=cluster_id,
        view=view,
        op=op,
        commit=commit,
        first_revision=op,
        command_count=1,
        feature_level=feature_level,
        timestamp=1_700_000_000_000_000 + op,
        body=b"op %d" % op if body is None else body,
    )


def chain(
    count: int,
    *,
    after: SealedPrepare | None = None,
    view: int = 1,
    commit: int = 0,
    bodies: dict[int, bytes] | None = None,
    feature_level: int = 1,
) -> list[SealedPrepare]:
    """`count` prepares, each the child of the one before; `commit` is the same in all."""
    prepares: list[SealedPrepare] = []
    parent, op = (NO_PARENT, 0) if after is None else (after.checksum, after.op)
    for _ in range(count):
        op += 1
        body = (bodies or {}).get(op)
        prepares.append(
            prepare(
                op,
                parent,
                view=view,
                commit=min(commit, op - 1),
                body=body,
                feature_level=feature_level,
            )
        )
        parent = prepares[-1].checksum
    return prepares


def create(
    storage: Storage, *, replica_count: int = 1, segment_bytes: int = SEGMENT_BYTES
) -> Journal:
    """A new journal of replica 0, with a known journal id."""
    journal, _ = Journal.create(
        storage,
        DIRECTORY,
        cluster_id=CLUSTER_ID,
        replica_id=0,
        replica_count=replica_count,
        segment_bytes=segment_bytes,
        entropy=lambda size: JOURNAL_ID[:size],
    )
    return journal


def reopen(
    storage: Storage,
    *,
    replica_count: int = 1,
    replica_id: int = 0,
    commit_max: int | None = None,
    log_view: int | None = LOG_VIEW,
    replay_op: int = 1,
    base_checksum: bytes | None = None,
    cluster_id: bytes = CLUSTER_ID,
    segment_bytes: int = SEGMENT_BYTES,
) -> tuple[Journal, Recovery]:
    """Open what `create` made. The superblock knows the snapshot's cut to be committed."""
    return Journal.open(
        storage,
        DIRECTORY,
        cluster_id=cluster_id,
        replica_id=replica_id,
        replica_count=replica_count,
        commit_max=replay_op - 1 if commit_max is None else commit_max,
        log_view=log_view,
        replay_op=replay_op,
        base_checksum=base_checksum,
        segment_bytes=segment_bytes,
    )


def append_unchecked(journal: Journal, group: Iterable[SealedPrepare]) -> None:
    """Write records that no rule allows, to see how recovery judges them."""
    journal._append([prepare_content(prepare) for prepare in group], use_reserve=False)


def filled(
    storage: Storage, groups: Iterable[list[SealedPrepare]], *, replica_count: int = 1
) -> list[SealedPrepare]:
    """Create a journal, append the groups, close it, and give all prepares."""
    journal = create(storage, replica_count=replica_count)
    appended = []
    for group in groups:
        journal.append(group)
        appended += group
    journal.close()
    return appended


def segment(number: int) -> str:
    """The path of a segment."""
    return f"{DIRECTORY}/segment-{number:016d}.log"


def place(index: int) -> tuple[str, int]:
    """Path and offset of the record appended as number `index`, from 0, one sector each."""
    return segment(1 + index // RECORDS_PER_SEGMENT), SECTOR_BYTES * (
        1 + index % RECORDS_PER_SEGMENT
    )


def intact_records(data: bytes, number: int) -> list[IntactRecord]:
    """The intact records of a segment's bytes."""
    items = scan_segment(data, journal_id=JOURNAL_ID, segment=number)
    return [item for item in items if isinstance(item, IntactRecord)]


def reopen_and_close(storage: MemoryStorage) -> Recovery:
    """Open as a cluster member, close, and give what recovery said."""
    journal, recovery = reopen(storage, replica_count=3)
    journal.close()
    return recovery


def refused(
    storage: MemoryStorage, error: type[Exception], match: str, **options: Any
) -> Exception:
    """Opening raises, changes nothing, and leaves the directory free for another try."""
    before = storage.snapshot()
    for _ in range(2):
        with pytest.raises(error, match=match) as raised:
            reopen(storage, **options)
    assert storage.snapshot() == before
    return raised.value
