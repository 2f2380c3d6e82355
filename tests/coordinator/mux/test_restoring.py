"""A mux refuses unusable sections, each for its own reason, before anything runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from coordinator.mux.catalog_types import (
    CatalogCounters,
    ClusterMembers,
    Description,
    EpochMember,
    Restored,
    Snapshot,
    SnapshotState,
)
from coordinator.mux.entities import (
    CatalogValue,
    Minimum,
    RestoreError,
    Session,
    SessionsValue,
    WindowRow,
    kind_and_key,
)
from coordinator.mux.mux import Mux
from coordinator.mux.types import RequestReply, SpanReply
from coordinator.stages.codec import ProtobufCodec
from viewstamp import limits
from viewstamp.machine.freezing import Entity

CODEC = ProtobufCodec()
SESSION = Session(5, 7, b"n" * 16, 2)
REPLY = RequestReply(5, 2, 1, 8, 9, (SpanReply(b"\x0a\x00"),))
SESSIONS: tuple[SessionsValue, ...] = (SESSION, Minimum(7, 4), WindowRow(5, 1, 2), REPLY)
OLD = Snapshot(1, SnapshotState.FAILED, 2, 3, created_at=4, decided_at=5, keep_last=1)
OWN = Snapshot(2, SnapshotState.CREATED, 10, 20, created_at=30, keep_last=1)
CATALOG: tuple[CatalogValue, ...] = (OLD, OWN, CatalogCounters(2))


def _entities(*values: SessionsValue | CatalogValue) -> list[Entity]:
    """Return values as entities in order."""
    return sorted((*kind_and_key(value), CODEC.encode_entity(value)) for value in values)


def _start(sessions: list[Entity], catalog: list[Entity]) -> Mux:
    """Start at op 10, revision 20, from generation 2."""
    return Mux({}, CODEC, Restored(10, 20, limits.FEATURE_LEVEL_MAX, 2, sessions, catalog))


def test_what_is_whole_is_taken_over() -> None:
    """A mux holds all given entities, with indexes and bytes of replies."""
    mux = _start(_entities(*SESSIONS), _entities(*CATALOG))
    assert sorted(mux.entities()) == _entities(*SESSIONS)
    assert list(mux.catalog.entities()) == _entities(*CATALOG)
    assert (mux.op, mux.revision, len(mux.sessions)) == (10, 20, 1)
    mux.replies.acknowledge(5, 2)
    assert mux.replies.replies_bytes == 0


SESSIONS_REFUSED: list[tuple[str, tuple[SessionsValue, ...], str]] = [
    ("no window", (SESSION,), "session 5 has no window"),
    ("a window of nobody", (WindowRow(5, 0, 0),), "a window has no session 5"),
    ("not applied", (SESSION, WindowRow(5, 0, 1)), "has applied 1 of 2 requests"),
    ("a reply is lacking", (SESSION, WindowRow(5, 1, 2)), "acknowledged 1 of 2 .* keeps \\[\\]"),
    ("acknowledged too much", (SESSION, WindowRow(5, 3, 2)), "acknowledged 3 of 2"),
    ("a reply of nobody", (REPLY,), "reply 2 of session 5 belongs to no session"),
    ("a reply of the future", (*SESSIONS[:3], replace(REPLY, op=11)), "reply 2 .* is of op 11"),
    ("a session of the future", (replace(SESSION, session_id=21),), "lies outside of 1..20"),
    ("a minimum of the future", (Minimum(7, 21),), "minimum 21 of user 7 lies outside of 1..20"),
    ("a short nonce", (replace(SESSION, nonce=b"n"),), "has a nonce of 1 bytes"),
    ("one nonce twice", (SESSION, replace(SESSION, session_id=6)), "sessions 5 and 6 have one"),
]


@pytest.mark.parametrize(
    ("values", "message"),
    [row[1:] for row in SESSIONS_REFUSED],
    ids=[row[0] for row in SESSIONS_REFUSED],
)
def test_sessions_that_do_not_fit(values: tuple[SessionsValue, ...], message: str) -> None:
    """Entities of sessions that contradict one another, or the place of the cut, are named."""
    with pytest.raises(RestoreError, match=message):
        _start(_entities(*values), _entities(*CATALOG))


MEMBERS = ClusterMembers(10, 2**48, (EpochMember(4, "a:1"),), (EpochMember(3, "b:1"),), 5)
DONE = replace(OLD, state=SnapshotState.COMPLETED)
CATALOG_REFUSED: list[tuple[str, tuple[CatalogValue, ...], str]] = [
    ("no counters", (OLD, OWN), "snapshot 1 breaks a rule: numbers lie in 1..0"),
    ("two under way", (replace(OLD, state=OWN.state, decided_at=0), *CATALOG[1:]), "only 2 may be"),
    ("undecided", (replace(OLD, decided_at=0), *CATALOG[1:]), "time of a decision"),
    ("completed without root", (DONE, *CATALOG[1:]), "root belongs to completed ones"),
    ("half a cut", (replace(OLD, cut_revision=0), *CATALOG[1:]), "a cut has op, revision and time"),
    ("cuts out of order", (replace(OLD, cut_op=11), *CATALOG[1:]), "must lie behind"),
    ("not its own section", (OLD, CatalogCounters(2)), "2 must be under way in its own"),
    ("a description of nothing", (*CATALOG, Description("", 1)), "has 0 bytes; it must have 1"),
    ("a long description", (*CATALOG, Description("x" * 257, 1)), "has 257 bytes; .* 1 to 256"),
    ("a description of the future", (*CATALOG, Description("x", 21)), "set at revision 21, outsi"),
    ("members of the future", (*CATALOG, replace(MEMBERS, began_op=11)), "behind op 11, outside"),
    ("members of no entry", (*CATALOG, replace(MEMBERS, began_op=0)), "behind op 0, outside"),
    ("nobody votes", (*CATALOG, replace(MEMBERS, voters=())), "and one of them a vote"),
    ("an id twice", (*CATALOG, replace(MEMBERS, standbys=MEMBERS.voters)), "ids of their own"),
    ("an id again", (*CATALOG, replace(MEMBERS, next_replica_id=4)), "below the next one, 4"),
    ("another cut", (OLD, replace(OWN, cut_op=9), CatalogCounters(2)), "was cut at op 9"),
]


@pytest.mark.parametrize(
    ("values", "message"),
    [row[1:] for row in CATALOG_REFUSED],
    ids=[row[0] for row in CATALOG_REFUSED],
)
def test_catalogs_that_do_not_fit(values: tuple[CatalogValue, ...], message: str) -> None:
    """Entities of the catalog that contradict one another, or the place of the cut, are named."""
    with pytest.raises(RestoreError, match=message):
        _start(_entities(*SESSIONS), _entities(*values))


BYTES_REFUSED: list[tuple[str, Callable[[list[Entity]], list[Entity]], str]] = [
    ("out of order", lambda entities: entities[::-1], "comes behind kind"),
    ("twice", lambda entities: [entities[0], *entities], "comes behind kind"),
    ("unknown kind", lambda entities: [*entities, (9, b"", b"")], "there is no kind 9"),
    ("another key", lambda e: [(1, bytes(8), e[0][2]), *e[1:]], "says that it has kind and key"),
    (
        "not canonical",
        lambda e: [(*e[0][:2], e[0][2] + b"\x20\x02"), *e[1:]],
        "is not in its canonical encoding",
    ),
]


@pytest.mark.parametrize(
    ("change", "message"), [row[1:] for row in BYTES_REFUSED], ids=[row[0] for row in BYTES_REFUSED]
)
def test_bytes_that_do_not_fit(
    change: Callable[[list[Entity]], list[Entity]], message: str
) -> None:
    """Order, keys and bytes of every entity are checked before any is used."""
    with pytest.raises(RestoreError, match=message):
        _start(change(_entities(*SESSIONS)), _entities(*CATALOG))
