"""Reads about sessions, without a cluster around them."""

from __future__ import annotations

from typing import Any, Final

import pytest

from coordinator.gateway.session_reads import SessionReads
from coordinator.mux import types as mux
from coordinator.mux.sessions import SessionsMachine
from coordinator.stages.codec import ProtobufCodec
from viewstamp import limits
from viewstamp.api.errors.v1 import errors_pb2
from viewstamp.api.sessions.v1 import sessions_service_pb2 as pb
from viewstamp.framing import frame, unframe

OWN, OTHERS = 50, 51
ALICE, BOB = 7, 8
SESSIONS: Final = {1: ALICE, 2: BOB, 3: ALICE, 4: BOB}


@pytest.fixture
def reads() -> SessionReads:
    """Return the reads over four sessions of two users."""
    return reads_at(limits.FEATURE_LEVEL_MAX)


def reads_at(level: int) -> SessionReads:
    """Return the reads over four sessions of two users, at a feature level."""
    machine = SessionsMachine(ProtobufCodec())
    for revision, user_id in SESSIONS.items():
        nonce = revision.to_bytes(limits.SESSION_NONCE_BYTES, "big")
        span = mux.LoggedSpan(1, 1, b"", user_id, 1)
        machine.apply(mux.RegisterSession(nonce), span, 0, revision)
    return SessionReads(machine, lambda: level)


def ask(reads: SessionReads, code: int, *requests: Any) -> mux.QueryOutcome:
    """Ask as alice."""
    items = b"".join(frame(request.SerializeToString()) for request in requests)
    return reads.query(mux.QueryItem(1, code, len(requests), items, ALICE, 1, 0))


def page(reads: SessionReads, **fields: Any) -> tuple[list[int], str]:
    """Return a page of others' sessions, and the token of the next."""
    outcome = ask(reads, OTHERS, pb.ListUserSessionsRequest(**fields))
    assert not outcome.errors
    answer = pb.ListUserSessionsResponse.FromString(unframe(outcome.results)[0])
    return [session.session_id for session in answer.sessions], answer.next_page_token


def test_own_sessions(reads: SessionReads) -> None:
    """Users see their own sessions, and no others."""
    outcome = ask(reads, OWN, pb.ListSessionsRequest())
    answer = pb.ListSessionsResponse.FromString(unframe(outcome.results)[0])
    assert [(s.session_id, s.user_id) for s in answer.sessions] == [(1, ALICE), (3, ALICE)]


def own_page(reads: SessionReads, **fields: Any) -> tuple[list[int], str]:
    """Return a page of alice's sessions, and the token of the next."""
    outcome = ask(reads, OWN, pb.ListSessionsRequest(**fields))
    assert not outcome.errors
    answer = pb.ListSessionsResponse.FromString(unframe(outcome.results)[0])
    return [session.session_id for session in answer.sessions], answer.next_page_token


def test_own_sessions_come_in_pages(reads: SessionReads) -> None:
    """Users read their own sessions page by page; a token of another list is refused."""
    first, token = own_page(reads, page_size=1)
    assert (first, own_page(reads, page_size=1, page_token=token)) == ([1], ([3], ""))
    outcome = ask(reads, OTHERS, pb.ListUserSessionsRequest(page_token=token, user_id=ALICE))
    (error,) = outcome.errors
    assert errors_pb2.Error.FromString(error.error).case == "page_token_of_another_list"


def test_own_sessions_are_on_one_page_below_the_level() -> None:
    """Another replica may be of a build without pages: none must be told of a next one."""
    reads = reads_at(limits.FEATURE_LEVEL_GUARDS - 1)
    assert own_page(reads, page_size=1, page_token="of no list") == ([1, 3], "")


def test_pages(reads: SessionReads) -> None:
    """Pages follow one another without a gap, for one user or for all."""
    assert page(reads) == ([1, 2, 3, 4], "")
    first, token = page(reads, page_size=3)
    assert (first, page(reads, page_size=3, page_token=token)) == ([1, 2, 3], ([4], ""))
    first, token = page(reads, page_size=1, user_id=BOB)
    assert (first, page(reads, page_size=1, page_token=token, user_id=BOB)) == ([2], ([4], ""))


def test_tokens_belong_to_a_filter(reads: SessionReads) -> None:
    """A page token of one user's sessions is refused for all sessions, and for another user's."""
    _, of_bob = page(reads, page_size=1, user_id=BOB)
    _, of_all = page(reads, page_size=1)
    for fields in (
        {"page_token": of_bob},
        {"page_token": of_bob, "user_id": ALICE},
        {"page_token": of_all, "user_id": BOB},
    ):
        outcome = ask(reads, OTHERS, pb.ListUserSessionsRequest(**fields))
        (error,) = outcome.errors
        case = errors_pb2.Error.FromString(error.error).case
        assert case == "page_token_of_another_list"


@pytest.mark.parametrize("fields", [{"page_size": 1001}, {"page_token": "x"}])
def test_bad_pages_are_refused_alone(reads: SessionReads, fields: dict[str, Any]) -> None:
    """An impossible page is refused, and the reads beside it are answered."""
    bad = pb.ListUserSessionsRequest(**fields)
    outcome = ask(reads, OTHERS, bad, pb.ListUserSessionsRequest())
    (error,) = outcome.errors
    assert error.index == 0
    assert errors_pb2.Error.FromString(error.error).reason == errors_pb2.REASON_MALFORMED_REQUEST
    assert unframe(outcome.results)[1]


def test_answers_fit_a_message(reads: SessionReads, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reads beyond the size of a message are refused."""
    monkeypatch.setattr("coordinator.gateway.session_reads.MESSAGE_BYTES_MAX", 10)
    outcome = ask(reads, OTHERS, *[pb.ListUserSessionsRequest()] * 3)
    assert [error.index for error in outcome.errors] == [1, 2]
