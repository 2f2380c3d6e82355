"""Entries without commands, which lead a log on and change nothing."""

from __future__ import annotations

from viewstamp.format.prepare import NO_PARENT, SealedPrepare, seal


def first_entry(cluster_id: bytes) -> SealedPrepare:
    """Return an entry without commands as op 1 of a cluster."""
    return seal(
        parent=NO_PARENT,
        cluster_id=cluster_id,
        view=1,
        op=1,
        commit=0,
        first_revision=1,
        command_count=0,
        feature_level=1,
        timestamp=1,
        body=b"",
    )


def empty_entries(after: SealedPrepare, count: int) -> list[SealedPrepare]:
    """Return entries without commands that follow another one."""
    added: list[SealedPrepare] = []
    for _ in range(count):
        before = added[-1] if added else after
        added.append(
            seal(
                parent=before.checksum,
                cluster_id=before.header.cluster_id,
                view=before.view,
                op=before.op + 1,
                commit=before.op,
                first_revision=before.last_revision + 1,
                command_count=0,
                feature_level=before.header.feature_level,
                timestamp=before.timestamp + 1_000_000,
                body=b"",
            )
        )
    return added
