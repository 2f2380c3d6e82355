"""Callers of a replica through the plain generated stubs, and the refusals that they get."""

from __future__ import annotations

import queue
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import grpc
import pytest

from viewstamp.api.cluster.v1 import cluster_service_pb2 as cluster
from viewstamp.api.cluster.v1.cluster_service_pb2_grpc import ClusterServiceStub
from viewstamp.api.common.v1.common_pb2 import Consistency, Identifier
from viewstamp.api.consumer_groups.v1.consumer_groups_service_pb2_grpc import (
    ConsumerGroupsServiceStub,
)
from viewstamp.api.sessions.v1 import sessions_service_pb2 as sessions
from viewstamp.api.sessions.v1.sessions_service_pb2_grpc import SessionsServiceStub
from viewstamp.api.snapshots.v1.snapshots_service_pb2_grpc import SnapshotsServiceStub
from viewstamp.api.streams.v1 import streams_service_pb2 as streams
from viewstamp.api.streams.v1.streams_service_pb2_grpc import StreamsServiceStub
from viewstamp.api.submit.v1 import submit_service_pb2 as submit
from viewstamp.api.submit.v1.submit_service_pb2_grpc import SubmitServiceStub
from viewstamp.api.users.v1 import users_service_pb2 as users
from viewstamp.api.users.v1.users_service_pb2_grpc import UsersServiceStub
from viewstamp.framing import frame_all
from viewstamp.routing import SERVICE_NAMES
from viewstamp.status import refusal_of

CALL_TIMEOUT_S: Final = 30
CREATE_STREAM_CODE: Final = 200
HEADER_KEY: Final = "viewstamp-header-bin"


@dataclass(frozen=True)
class Refused:
    """How a call failed, as a client sees it."""

    code: grpc.StatusCode
    reason: str
    message: str
    details: dict[str, str]
    # The encoded header of a decision in the log; empty for earlier refusals.
    header: bytes = b""


@dataclass
class CallFailure:
    """Has the refusal once the block of `refused` has ended."""

    found: Refused | None = None

    @property
    def it(self) -> Refused:
        """Return the refusal."""
        assert self.found is not None
        return self.found

    def __iter__(self) -> Iterator[Any]:
        """Unpack into code and reason."""
        return iter((self.it.code, self.it.reason))


@contextmanager
def refused() -> Iterator[CallFailure]:
    """Expect a call to fail with the product's ErrorInfo."""
    failure = CallFailure()
    with pytest.raises(grpc.RpcError) as caught:
        yield failure
    refusal = refusal_of(caught.value)
    assert refusal is not None, f"no ErrorInfo: {caught.value}"
    code: grpc.StatusCode = caught.value.code()
    trailing: Any = caught.value.trailing_metadata()
    header = dict(trailing or ()).get(HEADER_KEY, b"")
    failure.found = Refused(code, refusal.name, refusal.message, refusal.details, header)


def named(name: str) -> Identifier:
    """Return an identifier by name."""
    return Identifier(name=name)


class Caller:
    """A caller with a token, a session, or neither."""

    def __init__(self, channel: grpc.Channel, token: str = "", session: int = 0) -> None:
        """Call over `channel`."""
        self.channel = channel
        self.token = token
        self.session = session
        self._number = 0
        self.users = UsersServiceStub(channel)
        self.streams = StreamsServiceStub(channel)
        self.groups = ConsumerGroupsServiceStub(channel)
        self.sessions = SessionsServiceStub(channel)
        self.cluster = ClusterServiceStub(channel)
        self.snapshots = SnapshotsServiceStub(channel)

    def metadata(self, **entries: object) -> tuple[tuple[str, str], ...]:
        """Return the metadata of a call; `entries` come without the prefix viewstamp-."""
        own = (("authorization", f"Bearer {self.token}"),) if self.token else ()
        return (*own, *((f"viewstamp-{key}", str(value)) for key, value in entries.items()))

    def call(self, method: Any, request: Any, /, **entries: object) -> Any:
        """Call a stub's method."""
        return method(request, metadata=self.metadata(**entries), timeout=CALL_TIMEOUT_S)

    def raw(self, path: str, payload: bytes, /, **entries: object) -> bytes:
        """Call a path with bytes."""
        method: Any = self.channel.unary_unary(path)
        answer: bytes = method(payload, metadata=self.metadata(**entries), timeout=CALL_TIMEOUT_S)
        return answer

    def logged_in(self, username: str, password: str) -> Caller:
        """Return a caller with an access token of that user."""
        request = users.LoginRequest(username=username, password=password)
        return Caller(self.channel, self.call(self.users.Login, request).access_token)

    def with_session(self) -> Caller:
        """Return the same caller with a new session."""
        request = sessions.RegisterSessionRequest(nonce=secrets.token_bytes(16))
        opened = self.call(self.sessions.RegisterSession, request)
        return Caller(self.channel, self.token, opened.session_id)

    def once(self, method: Any, request: Any) -> Any:
        """Call with the session's next request number, acknowledging all before."""
        self._number += 1
        return self.call(
            method, request, session=self.session, request=self._number, acked=self._number - 1
        )

    def create_stream(self, name: str, **entries: object) -> Any:
        """Create a stream."""
        return self.call(
            self.streams.CreateStream, streams.CreateStreamRequest(name=name), **entries
        )

    def create_topic(self, stream: str, name: str, partitions: int = 1) -> Any:
        """Create a topic."""
        request = streams.CreateTopicRequest(
            stream=named(stream), name=name, partitions_count=partitions
        )
        return self.call(self.streams.CreateTopic, request)

    def create_user(self, username: str, password: str) -> Any:
        """Create a user without permissions."""
        request = users.CreateUserRequest(username=username, password=password)
        return self.call(self.users.CreateUser, request)

    def status(self, *, digests: bool = False) -> cluster.GetStatusResponse:
        """Return the replica's status."""
        request = cluster.GetStatusRequest(include_digests=digests)
        response: cluster.GetStatusResponse = self.call(self.cluster.GetStatus, request)
        return response

    def digests(self) -> list[str]:
        """Return the state digests of every stage."""
        status = self.status(digests=True)
        found = [*(service.state_digest for service in status.services), status.sessions_digest]
        assert len(found) == len(SERVICE_NAMES) + 1 and all(found)
        return found

    def alarms(self) -> list[str]:
        """Return the raised alarms by kind."""
        response = self.call(self.cluster.ListAlarms, cluster.ListAlarmsRequest())
        return [cluster.AlarmKind.Name(alarm.kind) for alarm in response.alarms]


class SubmitStream:
    """An open Submit stream; requests are encoded when they are sent."""

    def __init__(
        self, caller: Caller, session: int | None = None, *, takes_packed_answers: bool = False
    ) -> None:
        """Open a stream for the caller's session, or another."""
        self._requests: list[Any] = []
        self._call: Any = None
        self._feed = _Feed()
        self._call = SubmitServiceStub(caller.channel).Submit(
            self._feed, metadata=caller.metadata(), timeout=CALL_TIMEOUT_S
        )
        opening = submit.OpenStream(
            session_id=caller.session if session is None else session,
            takes_packed_answers=takes_packed_answers,
        )
        self._feed.put(submit.SubmitRequest(open=opening))
        self.opened = self.receive().opened

    def send(self, number: int, *spans: submit.Span, acked: int = 0) -> None:
        """Send commands under a request number."""
        request = submit.CommandRequest(number=number, acked=acked, spans=spans)
        self._feed.put(submit.SubmitRequest(command=request))

    def send_read(
        self, read_id: int, *spans: submit.Span, consistency: Consistency | None = None
    ) -> None:
        """Send reads."""
        request = submit.ReadRequest(read_id=read_id, spans=spans, consistency=consistency)
        self._feed.put(submit.SubmitRequest(read=request))

    def put(self, request: submit.SubmitRequest) -> None:
        """Send any message."""
        self._feed.put(request)

    def receive(self) -> submit.SubmitResponse:
        """Return the next message from the cluster; raises grpc.RpcError."""
        response: submit.SubmitResponse = next(self._call)
        return response

    def ask(self, number: int, *spans: submit.Span, acked: int = 0) -> submit.CommandReply:
        """Send commands and return the answer."""
        self.send(number, *spans, acked=acked)
        return self.receive().command

    def end(self) -> list[submit.SubmitResponse]:
        """End the sending side and return all answers that still come."""
        self._feed.end()
        return list(self._call)


class _Feed:
    """An iterator over messages that are added while it is read."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def put(self, item: Any) -> None:
        """Add one message."""
        self._queue.put(item)

    def end(self) -> None:
        """End the iteration after the messages added so far."""
        self._queue.put(None)

    def __iter__(self) -> _Feed:
        return self

    def __next__(self) -> Any:
        item = self._queue.get()
        if item is None:
            raise StopIteration
        return item


def span(code: int, *requests: Any, count: int | None = None) -> submit.Span:
    """Return a span of calls; `count` may be wrong."""
    items = frame_all(request.SerializeToString() for request in requests)
    return submit.Span(code=code, count=len(requests) if count is None else count, items=items)


def create_streams(*names: str) -> submit.Span:
    """Return a span that creates streams."""
    return span(CREATE_STREAM_CODE, *(streams.CreateStreamRequest(name=name) for name in names))
