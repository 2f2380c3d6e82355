"""The checks of entities that a mux starts from. Nothing is loaded before all have passed.

Each entity's canonical bytes, order and key are checked, then the references between entities.
Raises RestoreError, which names the entity and the fault.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from coordinator.mux.catalog_decisions import ROOT_BYTES
from coordinator.mux.catalog_types import (
    CatalogCounters,
    ClusterMembers,
    Description,
    FeatureLevel,
    Restored,
    Snapshot,
    SnapshotState,
)
from coordinator.mux.codec import Codec
from coordinator.mux.entities import (
    CatalogValue,
    Minimum,
    RestoreError,
    Session,
    SessionsValue,
    WindowRow,
    kind_and_key,
)
from coordinator.mux.types import RequestReply
from viewstamp import limits
from viewstamp.machine.freezing import Entity

Value = TypeVar("Value", bound=SessionsValue | CatalogValue)


def checked_sessions(restored: Restored, codec: Codec) -> list[SessionsValue]:
    """Return the entities of the sessions section."""
    values = list(_decoded("sessions", restored.sessions, codec.decode_sessions_entity, codec))
    sessions = {v.session_id: v for v in values if isinstance(v, Session)}
    windows = {v.session_id: v for v in values if isinstance(v, WindowRow)}
    replies: dict[int, list[RequestReply]] = {session_id: [] for session_id in sessions}
    for value in values:
        if isinstance(value, RequestReply):
            _check_reply(value, restored, sessions)
            replies[value.session_id].append(value)
    _check_sessions(sessions.values(), restored)
    _check_minimums(values, restored)
    if sessions.keys() != windows.keys():
        odd = min(sessions.keys() ^ windows.keys())
        raise RestoreError(f"session {odd} has no window, or a window has no session {odd}")
    for session in sessions.values():
        _check_window(session, windows[session.session_id], replies[session.session_id])
    return values


def checked_catalog(restored: Restored, codec: Codec) -> list[CatalogValue]:
    """Return the entities of the catalog section."""
    values = list(_decoded("catalog", restored.catalog, codec.decode_catalog_entity, codec))
    snapshots = [value for value in values if isinstance(value, Snapshot)]
    last = sum(value.last_generation for value in values if isinstance(value, CatalogCounters))
    before = (0, 0)
    for snapshot in snapshots:
        _check_snapshot(snapshot, last)
        if snapshot.is_cut:
            cut = (snapshot.cut_op, snapshot.cut_revision)
            if not (before[0] < cut[0] and before[1] < cut[1]):
                raise RestoreError(
                    f"snapshot {snapshot.generation} was cut at op and revision {cut}, "
                    f"which must lie behind {before}"
                )
            before = cut
    _check_own_cut(restored, snapshots)
    _check_level(restored, values)
    _check_description(restored, values)
    _check_members(restored, values)
    return values


def _decoded(
    section: str,
    entities: Iterable[Entity],
    decode: Callable[[int, bytes], Value],
    codec: Codec,
) -> Iterator[Value]:
    """Yield the values of entities, checking their order, bytes and keys."""
    before: tuple[int, bytes] | None = None
    for kind, key, canonical in entities:
        where = f"{section} entity of kind {kind} and key {key.hex()}"
        if before is not None and (kind, key) <= before:
            raise RestoreError(f"{where} comes behind kind {before[0]}, key {before[1].hex()}")
        before = (kind, key)
        try:
            value = decode(kind, canonical)
        except ValueError as error:
            raise RestoreError(f"{where} cannot be read: {error}") from error
        if kind_and_key(value) != (kind, key):
            raise RestoreError(f"{where} says that it has kind and key {kind_and_key(value)}")
        if codec.encode_entity(value) != canonical:
            raise RestoreError(f"{where} is not in its canonical encoding")
        yield value


def _check_sessions(sessions: Iterable[Session], restored: Restored) -> None:
    """Check each session, and sessions against one another."""
    nonces: dict[tuple[int, bytes], int] = {}
    for session in sessions:
        session_id = session.session_id
        if not 1 <= session_id <= restored.revision:
            raise RestoreError(f"session {session_id} lies outside of 1..{restored.revision}")
        if len(session.nonce) != limits.SESSION_NONCE_BYTES:
            raise RestoreError(f"session {session_id} has a nonce of {len(session.nonce)} bytes")
        other = nonces.setdefault((session.user_id, session.nonce), session_id)
        if other != session_id:
            raise RestoreError(f"sessions {other} and {session_id} have one user and one nonce")


def _check_minimums(values: Iterable[SessionsValue], restored: Restored) -> None:
    """Check minimum credential revisions."""
    for value in values:
        if not isinstance(value, Minimum):
            continue
        highest = max(value.minimum, value.minimum_token)
        if not 1 <= highest <= restored.revision:
            raise RestoreError(
                f"minimum {highest} of user {value.user_id} lies outside of 1..{restored.revision}"
            )


def _check_reply(reply: RequestReply, restored: Restored, sessions: dict[int, Session]) -> None:
    """Check one kept reply."""
    what = f"reply {reply.number} of session {reply.session_id}"
    if reply.session_id not in sessions:
        raise RestoreError(f"{what} belongs to no session")
    if not (1 <= reply.op <= restored.op and 1 <= reply.first_revision <= restored.revision):
        raise RestoreError(
            f"{what} is of op {reply.op}, revision {reply.first_revision}; the cut is at op "
            f"{restored.op}, revision {restored.revision}"
        )


def _check_window(session: Session, window: WindowRow, replies: list[RequestReply]) -> None:
    """Check that every logged request is applied, and that exactly the unacknowledged replies
    are kept.
    """
    what = f"session {session.session_id}"
    if window.last_applied != session.last_number:
        raise RestoreError(
            f"{what} has applied {window.last_applied} of {session.last_number} requests; "
            f"at a cut all of them have"
        )
    wanted = list(range(window.acked + 1, window.last_applied + 1))
    found = [reply.number for reply in replies]
    if window.acked > window.last_applied or found != wanted:
        raise RestoreError(
            f"{what} acknowledged {window.acked} of {window.last_applied} replies and keeps {found}"
        )


def _check_snapshot(snapshot: Snapshot, last: int) -> None:
    """Check that a generation has what its state requires, and no more."""
    is_completed = snapshot.state is SnapshotState.COMPLETED
    is_decided = snapshot.state is not SnapshotState.CREATED
    rules = {
        f"numbers lie in 1..{last}": 1 <= snapshot.generation <= last,
        f"only {last} may be under way": is_decided or snapshot.generation == last,
        "only what is cut can be completed": snapshot.is_cut or not is_completed,
        "the time of a decision belongs to decided ones": (snapshot.decided_at > 0) == is_decided,
        "root belongs to completed ones": len(snapshot.root) == (ROOT_BYTES if is_completed else 0),
        "tasks belong to completed ones": bool(snapshot.tasks) == is_completed,
        "a cut has op, revision and time": (
            snapshot.is_cut == (snapshot.cut_revision > 0) == (snapshot.created_at > 0)
        ),
    }
    broken = [rule for rule, holds in rules.items() if not holds]
    if broken:
        raise RestoreError(f"snapshot {snapshot.generation} breaks a rule: {broken[0]}")


def _check_own_cut(restored: Restored, snapshots: Iterable[Snapshot]) -> None:
    """Check that the section is of the claimed cut: it contains its own generation."""
    generation = restored.generation
    if generation == 0:
        return
    own = next((s for s in snapshots if s.generation == generation), None)
    if own is None or own.state is not SnapshotState.CREATED:
        raise RestoreError(f"snapshot {generation} must be under way in its own catalog section")
    if (own.cut_op, own.cut_revision) != (restored.op, restored.revision):
        raise RestoreError(
            f"snapshot {generation} was cut at op {own.cut_op}, revision {own.cut_revision}; "
            f"op {restored.op}, revision {restored.revision} were handed in"
        )


def _check_level(restored: Restored, values: Iterable[CatalogValue]) -> None:
    """Check that entries had no higher level than was decided; without a raise there is no
    check."""
    for value in values:
        if isinstance(value, FeatureLevel) and value.level < restored.feature_level:
            raise RestoreError(
                f"level {value.level} was decided, and the cut is of level {restored.feature_level}"
            )


def _check_description(restored: Restored, values: Iterable[CatalogValue]) -> None:
    """Check that a description is not empty, and that a command before the cut set it."""
    for value in values:
        if not isinstance(value, Description):
            continue
        size = len(value.text.encode())
        if not 1 <= size <= limits.DESCRIPTION_BYTES_MAX:
            raise RestoreError(
                f"the description has {size} bytes; it must have 1 to"
                f" {limits.DESCRIPTION_BYTES_MAX}"
            )
        if not 1 <= value.modified_revision <= restored.revision:
            raise RestoreError(
                f"the description was set at revision {value.modified_revision}, outside of"
                f" 1..{restored.revision}"
            )


def _check_members(restored: Restored, values: Iterable[CatalogValue]) -> None:
    """Check that an entry up to the cut named the members, each once and below the next id."""
    for value in values:
        if not isinstance(value, ClusterMembers):
            continue
        if not 1 <= value.began_op <= restored.op:
            raise RestoreError(
                f"the epoch began behind op {value.began_op}, outside of 1..{restored.op}"
            )
        ids = [member.replica_id for member in value.voters + value.standbys]
        if not value.voters or len(set(ids)) < len(ids) or max(ids) >= value.next_replica_id:
            raise RestoreError(
                f"the members {ids} of the epoch must have ids of their own below the next one,"
                f" {value.next_replica_id}, and one of them a vote"
            )
