"""Which snapshots a retention keeps, as a pure rule."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from coordinator.mux.catalog_types import RetentionClass, Snapshot, SnapshotState

_DAY_US = 86_400_000_000


def expired(
    snapshots: Iterable[Snapshot], keep_last: int, keep_daily: int, now_us: int
) -> tuple[int, ...]:
    """Return the generations that may be deleted, ascending, at log time `now_us`.

    Kept are the last `keep_last` completed ones, the newest of each of the last `keep_daily` days
    (UTC, by the time of the cut, today included), pinned ones without an end, and those whose time
    to be kept is not over. The last completed one is always kept, as are failed ones newer than
    that, and every one under way.
    """
    ascending = sorted(snapshots, key=lambda snapshot: snapshot.generation)
    completed = [s for s in reversed(ascending) if s.state is SnapshotState.COMPLETED]
    if not completed:
        return ()
    kept = frozenset(_kept(completed, keep_last, keep_daily, now_us))
    return tuple(
        snapshot.generation
        for snapshot in ascending
        if snapshot.state is not SnapshotState.CREATED
        and snapshot.generation < completed[0].generation
        and not _is_held(snapshot, now_us)
        and snapshot.generation not in kept
    )


def _is_held(snapshot: Snapshot, now_us: int) -> bool:
    """Return whether a snapshot is kept whatever the rules say."""
    if snapshot.kept_until:
        return now_us < snapshot.kept_until
    return snapshot.retention is RetentionClass.PINNED


def _kept(
    completed: Sequence[Snapshot], keep_last: int, keep_daily: int, now_us: int
) -> Iterable[int]:
    """Yield the generations that a rule keeps; `completed` is newest first."""
    for snapshot in completed[:keep_last]:
        # A snapshot of retention DAILY is kept only as its day's.
        if snapshot.retention is not RetentionClass.DAILY:
            yield snapshot.generation
    first_day = now_us // _DAY_US - keep_daily
    day_before: int | None = None
    for snapshot in completed:
        day = snapshot.created_at // _DAY_US
        if day > first_day and day != day_before:
            yield snapshot.generation
        day_before = day
