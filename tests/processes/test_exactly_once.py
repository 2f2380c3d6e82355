"""Sessions over real gRPC: each request number takes effect once, however often it is sent."""

from __future__ import annotations

import secrets
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest

from tests.processes.callers import Caller, SubmitStream, create_streams, named, refused, span
from tests.processes.processes import unique
from viewstamp.api.cluster.v1 import cluster_service_pb2 as cluster
from viewstamp.api.common.v1.common_pb2 import ResponseHeader
from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.api.sessions.v1 import sessions_service_pb2 as sessions
from viewstamp.api.streams.v1 import streams_service_pb2 as streams
from viewstamp.api.submit.v1 import submit_service_pb2 as submit
from viewstamp.api.users.v1 import users_service_pb2 as users
from viewstamp.framing import unframe

pytestmark = pytest.mark.xdist_group("processes")

CREATE_TOKEN = "/viewstamp.api.users.v1.UsersService/CreatePersonalAccessToken"
CREATE_STREAM = "/viewstamp.api.streams.v1.StreamsService/CreateStream"
CREATE_TOKEN_CODE = 105
END_SESSION_CODE = 2
ABORTED = grpc.StatusCode.ABORTED
INVALID = grpc.StatusCode.INVALID_ARGUMENT


def stream_named(stem: str) -> bytes:
    """Return an encoded request for a stream of a new name."""
    return streams.CreateStreamRequest(name=unique(stem)).SerializeToString()


@pytest.mark.long
def test_unary_retry_gets_the_same_bytes(root: Caller) -> None:
    """The same number twice is one command: header, result, and the secret of a token are equal."""
    caller = root.with_session()
    payload = users.CreatePersonalAccessTokenRequest(name=unique("t")).SerializeToString()
    first = caller.raw(CREATE_TOKEN, payload, session=caller.session, request=1)
    again = caller.raw(CREATE_TOKEN, payload, session=caller.session, request=1)
    assert first == again
    token = users.CreatePersonalAccessTokenResponse.FromString(first).token
    login = caller.call(caller.users.LoginWithToken, users.LoginWithTokenRequest(token=token))
    assert login.access_token
    refusal = [
        _reason(caller, CREATE_TOKEN, payload, session=caller.session, request=2, acked=1)
        for _ in range(2)
    ]
    assert refusal[0].reason == "TOKEN_EXISTS"
    assert refusal[0] == refusal[1]


def _reason(caller: Caller, path: str, payload: bytes, **entries: object) -> Any:
    with refused() as failure:
        caller.raw(path, payload, **entries)
    return failure.it


def test_rejection_says_where_it_was_decided(root: Caller) -> None:
    """A rejected command has a place in the log: a retry gets the same header and error."""
    caller = root.with_session()
    payload = stream_named("twice")
    made = streams.CreateStreamResponse.FromString(caller.raw(CREATE_STREAM, payload)).header
    entries = {"session": caller.session, "request": 1}
    first, again = (_reason(caller, CREATE_STREAM, payload, **entries) for _ in range(2))
    assert first.reason == "STREAM_EXISTS"
    assert first == again
    header = ResponseHeader.FromString(first.header)
    assert (header.cluster_id, header.view) == (made.cluster_id, made.view)
    assert header.op > made.op and header.revision > made.revision
    loose = _reason(caller, CREATE_STREAM, payload)
    assert ResponseHeader.FromString(loose.header).revision > header.revision


def test_refused_read_says_what_it_saw(root: Caller) -> None:
    """A read that finds nothing has a header with the revision at which this was so."""
    before = root.create_stream(unique("seen")).header
    with refused() as failure:
        root.call(root.streams.GetStream, streams.GetStreamRequest(stream=named(unique("gone"))))
    assert failure.it.reason == "STREAM_NOT_FOUND"
    header = ResponseHeader.FromString(failure.it.header)
    assert (header.cluster_id, header.view) == (before.cluster_id, before.view)
    assert header.op >= before.op and header.revision >= before.revision


def test_refusal_before_the_log_has_no_header(root: Caller) -> None:
    """A refusal that the log did not decide has no header."""
    caller = root.with_session()
    short = users.CreateUserRequest(username=unique("u"), password="x")
    for attempt in (
        lambda: caller.raw(CREATE_STREAM, b"", session=caller.session, request=3),
        lambda: Caller(root.channel).create_stream("any"),
        lambda: root.call(root.users.CreateUser, short),
        lambda: root.call(root.cluster.StepDown, cluster.StepDownRequest()),
    ):
        with refused() as failure:
            attempt()
        assert failure.it.header == b""


def test_concurrent_retries_are_one_command(root: Caller) -> None:
    """Callers who send one number at the same time share one effect and one answer."""
    caller = root.with_session()
    payload = users.CreatePersonalAccessTokenRequest(name=unique("t")).SerializeToString()

    def send(_: int) -> bytes:
        return caller.raw(CREATE_TOKEN, payload, session=caller.session, request=1)

    with ThreadPoolExecutor(6) as threads:
        assert len(set(threads.map(send, range(6)))) == 1


def test_submit_retry_gets_the_same_bytes(root: Caller) -> None:
    """Over Submit the reply, with revision and suffix, is the same on this and another stream."""
    caller = root.with_session()
    stream = SubmitStream(caller)
    token = users.CreatePersonalAccessTokenRequest(name=unique("t"))
    spans = (create_streams(unique("a"), unique("b")), span(CREATE_TOKEN_CODE, token))
    first = stream.ask(1, *spans)
    assert len(unframe(first.spans[0].results)) == 2
    assert first.spans[1].suffixes[0].suffix
    assert stream.ask(1, *spans) == first
    other = SubmitStream(caller)
    assert other.opened.last_request_number == 1
    assert other.opened.cluster_id == stream.opened.cluster_id == first.header.cluster_id
    assert other.ask(1, *spans) == first
    # The request's number belongs to no other request: not even to a part of this one.
    reused = other.ask(1, spans[0]).error
    assert Reason.Name(reused.reason) == "REASON_REQUEST_NUMBER_REUSED"
    failure = _reason(caller, CREATE_STREAM, stream_named("c"), session=caller.session, request=1)
    assert (failure.code, failure.reason) == (INVALID, "REQUEST_NUMBER_REUSED")
    # The earlier stream has ended, with all that waited in it.
    with refused() as replaced:
        stream.receive()
    assert (replaced.it.code, replaced.it.reason) == (ABORTED, "STREAM_REPLACED")


def test_packed_requests_are_those_requests(root: Caller) -> None:
    """Packed requests get the answers of single ones, packed only for a client that asks so."""
    caller = root.with_session()
    requests = [
        submit.CommandRequest(number=number, spans=[create_streams(unique("p"))])
        for number in (1, 2, 4, 3)
    ]
    packed = submit.SubmitRequest(commands=submit.CommandRequests(requests=requests))
    packing = SubmitStream(caller, takes_packed_answers=True)
    packing.put(packed)
    # The gap is refused at once; the other requests share a prepare, and hence one message.
    gap = packing.receive().command
    assert (gap.number, "resend from 3 on" in gap.error.message) == (4, True)
    replies = list(packing.receive().commands.replies)
    assert [(reply.number, len(reply.spans)) for reply in replies] == [(1, 1), (2, 1), (3, 1)]
    single = SubmitStream(caller)
    for request, reply in zip((requests[0], requests[1], requests[3]), replies, strict=True):
        assert single.ask(request.number, *request.spans) == reply
    single.put(packed)
    assert sorted(single.receive().command.number for _ in requests) == [1, 2, 3, 4]


def test_gap(root: Caller) -> None:
    """A number that leaves a gap is refused with the number to resend from, also over Submit."""
    caller = root.with_session()
    failure = _reason(caller, CREATE_STREAM, stream_named("g"), session=caller.session, request=3)
    assert (failure.code, failure.reason) == (ABORTED, "REQUEST_GAP")
    assert failure.details["resend_from"] == "1"
    reply = SubmitStream(caller).ask(2, create_streams(unique("g")))
    assert {d.key: d.value for d in reply.error.details}["resend_from"] == "1"


def test_too_old_and_acknowledged(root: Caller) -> None:
    """A reply that was acknowledged is forgotten, and its number refused for good."""
    caller = root.with_session()
    payload = stream_named("old")
    entries = {"session": caller.session}
    caller.raw(CREATE_STREAM, payload, **entries, request=1)
    caller.raw(CREATE_STREAM, stream_named("old"), **entries, request=2, acked=1)
    failure = _reason(caller, CREATE_STREAM, payload, **entries, request=1)
    assert (failure.code, failure.reason) == (ABORTED, "REQUEST_TOO_OLD")
    assert "request 1" in failure.message


def test_window(root: Caller) -> None:
    """Eight requests may be unacknowledged; the ninth waits for an acknowledgement."""
    caller = root.with_session()
    stream = SubmitStream(caller)
    for number in range(1, 9):
        assert stream.ask(number, create_streams(unique("w"))).HasField("header")
    full = stream.ask(9, create_streams(unique("w")))
    assert "acknowledge replies first" in full.error.message
    stream.send(0, acked=8)
    assert not stream.receive().command.HasField("error")
    assert stream.ask(9, create_streams(unique("w")), acked=8).spans


def test_acknowledging_ahead(root: Caller) -> None:
    """A reply that was never sent cannot be acknowledged."""
    caller = root.with_session()
    entries = {"session": caller.session, "request": 1, "acked": 1}
    failure = _reason(caller, CREATE_STREAM, stream_named("a"), **entries)
    assert (failure.code, failure.reason) == (INVALID, "MALFORMED_REQUEST")
    assert "lies beyond 0" in failure.message


def test_numbers_that_are_none(root: Caller) -> None:
    """A session or number that is no 64-bit integer is refused by name, and numbers start at 1."""
    caller = root.with_session()
    for key in ("session", "request", "acked"):
        for value in ("", "x", "-1", str(2**64), "9" * 500):
            entries: dict[str, object] = {"session": caller.session, "request": 1, "acked": 0}
            entries[key] = value
            failure = _reason(caller, CREATE_STREAM, b"", **entries)
            assert (failure.code, failure.reason) == (INVALID, "MALFORMED_REQUEST")
            assert f"viewstamp-{key}" in failure.message
    failure = _reason(caller, CREATE_STREAM, b"", session=caller.session, request=0)
    assert "numbered from 1" in failure.message
    failure = _reason(caller, CREATE_STREAM, stream_named("n"), request=1)
    assert (failure.reason, failure.details["key"]) == ("MALFORMED_REQUEST", "viewstamp-session")


def test_foreign_session(root: Caller) -> None:
    """A session serves the user who registered it and nobody else."""
    name = unique("user")
    root.create_user(name, "some-password")
    theirs = root.logged_in(name, "some-password").with_session().session
    entries = {"session": theirs, "request": 1}
    failure = _reason(root, CREATE_STREAM, stream_named("f"), **entries)
    never_was = _reason(root, CREATE_STREAM, b"", session=2**60, request=1)
    assert (failure.code, failure.reason) == (ABORTED, "SESSION_EVICTED")
    # The words are those for an unknown session: the owners of sessions are not disclosed.
    assert failure.message.replace(str(theirs), str(2**60)) == never_was.message
    with refused() as refusal:
        SubmitStream(root, session=theirs)
    assert refusal.it.reason == "SESSION_EVICTED"


def test_session_that_never_was(root: Caller) -> None:
    """An unknown session is answered like an ended one: register anew."""
    failure = _reason(root, CREATE_STREAM, b"", session=2**60, request=1)
    assert (failure.code, failure.reason) == (ABORTED, "SESSION_EVICTED")
    with refused() as refusal:
        SubmitStream(root, session=2**60)
    assert refusal.it.reason == "SESSION_EVICTED"


def test_same_nonce_same_session(root: Caller) -> None:
    """Registering again with the nonce of a live session finds it."""
    request = sessions.RegisterSessionRequest(nonce=secrets.token_bytes(16))
    first, again = (root.call(root.sessions.RegisterSession, request) for _ in range(2))
    assert first.session_id == again.session_id
    with refused() as failure:
        root.call(root.sessions.RegisterSession, sessions.RegisterSessionRequest(nonce=b"x"))
    assert failure.it.reason == "MALFORMED_REQUEST"
    assert "must have 16" in failure.it.message


def test_end_of_a_session_ends_its_streams(root: Caller) -> None:
    """The stream answers the requests before the session's end, then says SESSION_EVICTED."""
    caller = root.with_session()
    stream = SubmitStream(caller)
    end = span(END_SESSION_CODE, sessions.EndSessionRequest())
    stream.send(1, create_streams(unique("last")))
    stream.send(2, end)
    assert stream.receive().command.spans[0].results
    assert stream.receive().command.number == 2
    with refused() as failure:
        stream.receive()
    assert (failure.it.code, failure.it.reason) == (ABORTED, "SESSION_EVICTED")


def test_half_closed_stream_is_answered(root: Caller) -> None:
    """A client that has ended its side still gets every answer, then a clean end."""
    stream = SubmitStream(root.with_session())
    for number in range(1, 6):
        stream.send(number, create_streams(unique("h")))
    stream.send_read(1, submit.Span(code=251, count=1, items=b"\x0a\x00"))
    answers = stream.end()
    assert sorted(answer.command.number for answer in answers) == [0, 1, 2, 3, 4, 5]


def test_reads_alone_need_no_session(root: Caller) -> None:
    """A stream without a session serves reads, and refuses commands and acknowledgements."""
    stream = SubmitStream(root)
    stream.send_read(7, submit.Span(code=251, count=1, items=b"\x0a\x00"))
    assert stream.receive().read.read_id == 7
    for spans in ((create_streams(unique("n")),), ()):
        assert "register a session" in stream.ask(1, *spans).error.message


def test_more_messages_than_may_be_due(root: Caller) -> None:
    """A client that sends far more than it reads is slowed down, and no answer is lost."""
    stream = SubmitStream(root.with_session())
    for read_id in range(1000):
        stream.send_read(read_id, submit.Span(code=251, count=1, items=b"\x0a\x02\x18\x01"))
        stream.send(0)
    answers = stream.end()
    assert sorted(a.read.read_id for a in answers if a.HasField("read")) == list(range(1000))
    assert sum(a.HasField("command") for a in answers) == 1000


def test_transaction_over_a_session(root: Caller) -> None:
    """All parts succeed or none: the failing part is named, and a retry gets the same answer."""
    caller = root.with_session()
    name = unique("tx")
    create = streams.CreateStreamRequest(name=name).SerializeToString()
    part = submit.TransactionPart(code=200, request=create)
    path = "/viewstamp.api.submit.v1.SubmitService/Transact"
    twice = submit.TransactRequest(parts=[part, part]).SerializeToString()
    failure = _reason(caller, path, twice, session=caller.session, request=1)
    assert (failure.reason, failure.details["part"]) == ("STREAM_EXISTS", "1")
    once = submit.TransactRequest(parts=[part]).SerializeToString()
    done = caller.raw(path, once, session=caller.session, request=2, acked=1)
    assert caller.raw(path, once, session=caller.session, request=2, acked=1) == done
    nested = submit.TransactRequest(parts=[submit.TransactionPart(code=10)]).SerializeToString()
    failure = _reason(caller, path, nested, session=caller.session, request=3, acked=2)
    assert (failure.code, failure.reason) == (INVALID, "MALFORMED_REQUEST")
    assert "cannot be part of a transaction" in failure.message
