"""One restore from beginning to end, and what it tells."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Final

from coordinator.mux.stage import Stage, cut_services
from past.founding.directories import NewCluster, check_and_name, check_targets, write_cluster
from past.founding.endings import end_and_cut
from past.founding.errors import UnusableRemains
from past.founding.jumps import DROPPED
from past.founding.remains import Progress, Remains, Wanted, read_remains
from past.state import PastState
from viewstamp.format.kinds import KINDS

_MEMBERS: Final = (Stage.CONSUMER_GROUPS, 2)


@dataclass(frozen=True, slots=True)
class RestoreReport:
    """What a new cluster has, and what ends. Times are log time, microseconds since 1970.

    Everything that the lost cluster did behind `revision` is lost. `next_revision` is the first one
    that the new cluster gives.
    """

    from_cluster_id: str
    cluster_id: str
    generation: int
    cut_revision: int
    log_entries: int
    unconfirmed_entries: int
    missing_ops: list[tuple[int, int]]
    revision: int
    timestamp_us: int
    next_revision: int
    sessions_ended: int
    tokens_ended: int
    memberships_ended: int
    entities: dict[str, int]
    bad_copies: list[str]
    is_written: bool
    root: str
    directories: list[str]

    def to_json(self) -> dict[str, Any]:
        """Return it for programs."""
        return asdict(self)


def restore(wanted: Wanted, new: NewCluster, progress: Progress, *, dry_run: bool) -> RestoreReport:
    """Found a new cluster in a directory, or only tell what it would be.

    Raises FilesError, OSError, and what snapshot files, journal and superblock raise.
    """
    check_targets(new, (wanted.source, *wanted.copies, *filter(None, (wanted.archive,))))
    remains = read_remains(wanted, progress)
    state = remains.state
    if state.is_partial:
        state.go_on_from_here()
    revision, timestamp_us = state.revision, state.timestamp_us
    _check_is_another(new.cluster_id, remains)
    counts = _counts(remains)
    ended = end_and_cut(state, new.cluster_id)
    root = b""
    if not dry_run:
        written = write_cluster(new, state, ended, progress)
        root = written.manifest.root
        # The check needs the room of the state, which may be most of the memory.
        del state
        remains.state = PastState()
        check_and_name(written, progress)
    return RestoreReport(
        from_cluster_id=remains.cluster_id.hex(),
        cluster_id=new.cluster_id.hex(),
        generation=remains.generation,
        cut_revision=remains.cut_revision,
        log_entries=remains.entries,
        unconfirmed_entries=remains.unconfirmed,
        missing_ops=remains.missing,
        revision=revision,
        timestamp_us=timestamp_us,
        next_revision=ended.cut.last_revision + 1,
        sessions_ended=ended.sessions,
        tokens_ended=sum(counts.get(each, 0) for each in DROPPED),
        memberships_ended=counts.get(_MEMBERS, 0),
        entities={KINDS[place].name: n for place, n in sorted(counts.items()) if _is_kept(place)},
        bad_copies=remains.bad_copies,
        is_written=not dry_run,
        root=root.hex(),
        directories=[str(path) for path in new.directories(new.path).values()],
    )


def _check_is_another(cluster_id: bytes, remains: Remains) -> None:
    if cluster_id == remains.cluster_id:
        raise UnusableRemains(
            f"cluster {cluster_id.hex()} is the lost one, whose replicas and tokens would be taken"
            " for the new one's",
            "give another --cluster-id, or none",
            is_usage=True,
        )


def _counts(remains: Remains) -> dict[tuple[int, int], int]:
    """Return how many entities of each kind the services have."""
    state = remains.state
    counts: dict[tuple[int, int], int] = {}
    for stage in cut_services(state.feature_level):
        for kind, _, _ in state.entities(stage):
            counts[stage, kind] = counts.get((stage, kind), 0) + 1
    return counts


def _is_kept(place: tuple[int, int]) -> bool:
    """Return whether entities of a kind stay, and are no more than numbers of a section."""
    return place not in (*DROPPED, _MEMBERS) and bool(KINDS[place].key_fields)
