"""The sessions machine and its reply table, without the mux around them."""

from __future__ import annotations

import gc
import tracemalloc

import pytest

from coordinator.mux.codec import CredentialsChanged, UserEnded, UserSessionsEnded
from coordinator.mux.entities import Session
from coordinator.mux.replies import ERROR_OVERHEAD_BYTES, REPLY_OVERHEAD_BYTES, ReplyTable
from coordinator.mux.sessions import (
    HeaderVerdict,
    SessionApplied,
    SessionChanges,
    SessionRefused,
    SessionsMachine,
    at_level,
)
from coordinator.mux.types import (
    EndSession,
    IndexedError,
    LoggedRequest,
    LoggedSpan,
    RegisterSession,
    RequestReply,
    SpanReply,
)
from tests.coordinator.mux.fakes import FakeCodec
from viewstamp import limits


def _register(
    machine: SessionsMachine, user_id: int, revision: int, nonce: bytes | None = None
) -> SessionApplied | SessionRefused:
    """Register a session at a revision; the nonce is that revision unless given."""
    nonce = revision.to_bytes(limits.SESSION_NONCE_BYTES, "big") if nonce is None else nonce
    span = LoggedSpan(1, 1, b"", user_id, 1)
    return machine.apply(RegisterSession(nonce), span, 0, revision)


def test_a_user_has_as_many_sessions_as_allowed() -> None:
    """A session over a user's limit is refused; a known nonce still finds its session."""
    machine = SessionsMachine(FakeCodec())
    for revision in range(1, limits.SESSIONS_PER_USER_MAX + 1):
        assert isinstance(_register(machine, 7, revision), SessionApplied)
    assert _register(machine, 7, 1000) == SessionRefused(b"SESSION_LIMIT")
    assert isinstance(_register(machine, 8, 1000), SessionApplied)
    again = (1).to_bytes(limits.SESSION_NONCE_BYTES, "big")
    assert isinstance(_register(machine, 7, 1001, again), SessionApplied)
    assert len(machine) == limits.SESSIONS_PER_USER_MAX + 1


@pytest.mark.parametrize("level", [limits.FEATURE_LEVEL_GUARDS - 1, limits.FEATURE_LEVEL_GUARDS])
def test_the_end_of_a_session_may_only_be_validated(level: int) -> None:
    """EndSession that validates is answered alike and ends nothing; below the level it ends it."""
    machine = SessionsMachine(FakeCodec())
    _register(machine, 7, 1)
    span = LoggedSpan(2, 1, b"", 7, 1)
    validated = machine.apply(at_level(EndSession(validate_only=True), level), span, 1, 2)
    is_known = level >= limits.FEATURE_LEVEL_GUARDS
    assert isinstance(validated, SessionApplied)
    assert (machine.get(1) is not None, validated.effect is None) == (is_known, is_known)
    ended = machine.apply(EndSession(), span, 1, 3)
    assert isinstance(ended, SessionApplied) == is_known
    assert machine.get(1) is None


def test_the_cluster_has_as_many_sessions_as_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A session over the cluster's limit is refused, and none is evicted for it."""
    monkeypatch.setattr(limits, "SESSIONS_MAX", 3)
    machine = SessionsMachine(FakeCodec())
    for revision in (1, 2, 3):
        assert isinstance(_register(machine, revision, revision), SessionApplied)
    assert _register(machine, 4, 4) == SessionRefused(b"SESSION_LIMIT")
    assert [session.session_id for session in machine.live()] == [1, 2, 3]


def test_a_nonce_of_another_length_is_refused() -> None:
    """A nonce must have 16 bytes; anything else would not fit the canonical encoding."""
    machine = SessionsMachine(FakeCodec())
    assert _register(machine, 7, 1, b"short") == SessionRefused(b"MALFORMED_REQUEST")


def test_everything_a_savepoint_covers_is_taken_back() -> None:
    """An undo restores ended sessions, indexes, minimums and the pending notifications."""
    machine = SessionsMachine(FakeCodec())
    for revision, user_id in ((1, 7), (2, 7), (3, 8)):
        _register(machine, user_id, revision)
    machine.take_changes()
    before = sorted(machine.entities())
    machine.savepoint()
    machine.apply_effect(UserEnded(7), 9)
    machine.apply_effect(CredentialsChanged(8, 9), 9)
    machine.revert()
    assert sorted(machine.entities()) == before
    assert machine.take_changes() == SessionChanges((), (), ())
    machine.savepoint()
    machine.apply_effect(UserEnded(7), 9)
    machine.keep()
    assert machine.take_changes() == SessionChanges((), (1, 2), (7,))
    assert [session.session_id for session in machine.live()] == [3]


def test_a_header_check_keeps_no_older_session() -> None:
    """A used number is never taken back, so transactions alone do not fill the memory."""
    machine, user_id = SessionsMachine(FakeCodec()), 7_777_777
    _register(machine, user_id, 1)
    machine.take_changes()
    for number in range(1, 100):
        assert machine.check_header(LoggedRequest(1, number, 0, ())) is HeaderVerdict.APPLY
    sessions = [each for each in gc.get_objects() if isinstance(each, Session)]
    assert [each.last_number for each in sessions if each.user_id == user_id] == [99]


def test_loading_needs_little_more_memory_than_what_it_loads() -> None:
    """A restart remembers nothing that could be taken back: nothing of it ever is."""
    values = [
        Session(number, number // 8, number.to_bytes(16, "big")) for number in range(1, 10_001)
    ]
    machine = SessionsMachine(FakeCodec())
    tracemalloc.start()
    machine.load(values)
    kept, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1.2 * kept, f"{peak} bytes to keep {kept}"


def test_a_minimum_never_falls() -> None:
    """An older credential change that is reported later leaves the newer minimum in force."""
    machine = SessionsMachine(FakeCodec())
    machine.apply_effect(CredentialsChanged(7, 9), 9)
    machine.apply_effect(CredentialsChanged(7, 4), 10)
    assert machine.check_principal(LoggedSpan(1, 1, b"", 7, 8)) == b"UNAUTHENTICATED"
    assert machine.check_principal(LoggedSpan(1, 1, b"", 7, 9)) is None


def test_what_a_deleted_token_got_is_refused_at_log_order() -> None:
    """Stamps of a personal access token have a minimum of their own, beside the minimum of all."""
    machine = SessionsMachine(FakeCodec())
    machine.apply_effect(CredentialsChanged(7, 3, 9), 9)
    got_by_token = limits.TOKEN_STAMP | 8
    assert machine.check_principal(LoggedSpan(1, 1, b"", 7, got_by_token)) == b"UNAUTHENTICATED"
    assert machine.check_principal(LoggedSpan(1, 1, b"", 7, got_by_token + 1)) is None
    assert machine.check_principal(LoggedSpan(1, 1, b"", 7, 3)) is None


@pytest.mark.parametrize(
    ("effect", "left"),
    [
        (UserSessionsEnded(7, None), [3]),
        (UserSessionsEnded(7, 2), [1, 3]),
        (UserSessionsEnded(7, 3), [1, 2, 3]),
        (UserSessionsEnded(7, None, 1), [1, 3]),
    ],
)
def test_sessions_of_a_user_end(effect: UserSessionsEnded, left: list[int]) -> None:
    """One session of the user ends, or all but a kept one; never another user's."""
    machine = SessionsMachine(FakeCodec())
    for revision, user_id in ((1, 7), (2, 7), (3, 8)):
        _register(machine, user_id, revision)
    machine.apply_effect(effect, 9)
    assert [session.session_id for session in machine.live()] == left


def _history(order: tuple[int, ...]) -> SessionsMachine:
    """Return the same sessions, with tables filled in another order."""
    machine = SessionsMachine(FakeCodec())
    for revision in order:
        _register(machine, revision, revision)
        machine.apply_effect(CredentialsChanged(revision + 100, revision), revision)
    return machine


def test_entities_do_not_depend_on_insertion_order() -> None:
    """Two replicas that reached the same state in different ways agree on every byte."""
    assert sorted(_history((1, 2, 3)).entities()) == sorted(_history((3, 1, 2)).entities())


def _reply(session_id: int, number: int) -> RequestReply:
    """Return a reply of one refused and one applied command."""
    span = SpanReply(b"\x0a\x00\x0a\x01x", (IndexedError(0, b"E"),))
    return RequestReply(session_id, number, 2, 3, 4, (span,))


def test_bytes_of_replies_return_to_zero() -> None:
    """An acknowledgement and the end of a session free the bytes that admission counts."""
    table = ReplyTable(FakeCodec())
    table.open(5, 7)
    for number in (1, 2, 3):
        table.store(_reply(5, number))
    one = REPLY_OVERHEAD_BYTES + 5 + ERROR_OVERHEAD_BYTES + 1
    assert table.replies_bytes == 3 * one
    table.acknowledge(5, 1)
    table.acknowledge(5, 1)
    assert table.replies_bytes == 2 * one
    table.close(5)
    assert table.replies_bytes == 0


def test_what_was_never_given_cannot_be_acknowledged() -> None:
    """An acknowledgement beyond the last applied reply frees no reply that comes later."""
    table = ReplyTable(FakeCodec())
    table.open(5, 7)
    table.store(_reply(5, 1))
    table.acknowledge(5, 9)
    table.store(_reply(5, 2))
    table.acknowledge(5, 0)
    window = table.window(5)
    assert window is not None and (window.acked, sorted(window.replies)) == (1, [2])


def test_a_reply_behind_the_end_of_its_session_is_not_kept() -> None:
    """A request that ended its own session leaves nothing behind."""
    table = ReplyTable(FakeCodec())
    table.acknowledge(5, 1)
    table.store(_reply(5, 1))
    assert table.replies_bytes == 0 and table.window(5) is None


def test_replies_come_in_order() -> None:
    """A reply out of order means that a request was applied twice or lost: it stops the replica."""
    table = ReplyTable(FakeCodec())
    table.open(5, 7)
    with pytest.raises(AssertionError, match="reply 2 of session 5 after 0"):
        table.store(_reply(5, 2))
