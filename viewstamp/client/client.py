"""The client: calls of any method, batches, transactions, and typed facades per domain."""

from __future__ import annotations

import asyncio
import logging
import math
import sys
from collections.abc import AsyncIterator, Iterable, Sequence
from copy import copy
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from google.protobuf.message import DecodeError, Message

from viewstamp.api.sessions.v1 import sessions_service_pb2 as sessions_pb2
from viewstamp.api.submit.v1 import submit_service_pb2 as submit_pb2
from viewstamp.authorities import authority_problem
from viewstamp.client.cluster_calls import CALL_TIMEOUT_S, DEFAULT_TIMEOUT, ClusterCalls
from viewstamp.client.consistency import LINEARIZABLE, Consistency
from viewstamp.client.errors import CannotConnect, ClientError, ProtocolError
from viewstamp.client.field_levels import check_fields
from viewstamp.client.methods import METHODS, method_of
from viewstamp.client.packing import (
    PackedBatch,
    PendingCall,
    Result,
    batch_of,
    encode,
)
from viewstamp.client.streaming import ServerStreams
from viewstamp.client.submitter import Submitter
from viewstamp.client.transport import AccessTokenSource, Credentials, Endpoints
from viewstamp.errors import Refusal
from viewstamp.routing import Method, MethodKind

if TYPE_CHECKING:
    from viewstamp.api.history.v1.history_service_pb2 import BlameEntityResponse
    from viewstamp.api.routing.v1 import routing_pb2
    from viewstamp.client.brokers import Brokers
    from viewstamp.client.groups import Groups
    from viewstamp.client.history import BlamedPartName
    from viewstamp.client.informer import Informer
    from viewstamp.client.sessions import Sessions
    from viewstamp.client.snapshots import ClientSnapshots
    from viewstamp.client.streams import Streams, Topics
    from viewstamp.client.tracing import CallTrace, ClientTracing
    from viewstamp.client.users import Tokens, Users
    from viewstamp.client.watching import EntityType, Watch
    from viewstamp.telemetry.settings import Telemetry

logger = logging.getLogger(__name__)

CONNECT_TIMEOUT_S: Final = 10.0
# How long `close` waits for outstanding commands and for the end of the session.
CLOSE_TIMEOUT_S: Final = 2.0
# Attributes that are made at their first use, and call by the client that made them.
_FACADES: Final = frozenset(
    {"users", "tokens", "sessions", "streams", "topics", "groups", "brokers", "snapshots"}
)


async def connect(
    address: str | Iterable[str],
    *,
    username: str | None = None,
    password: str | None = None,
    access_token: str | None = None,
    personal_access_token: str | None = None,
    tls_ca: Path | str | None = None,
    timeout_s: float | None = CALL_TIMEOUT_S,
    connect_timeout_s: float = CONNECT_TIMEOUT_S,
    register_session: bool = True,
    learn_addresses: bool = True,
    telemetry: Telemetry | None = None,
) -> Client:
    """Log in, register a session, open a stream, and return a client that keeps it open.

    `address` is one `host:port`, or those of several replicas. Give exactly one of `username` with
    `password`, `access_token`, `personal_access_token`. `timeout_s` is each call's deadline; None
    waits for ever. With `register_session` False the session is registered at the first command.
    With `learn_addresses` the client also tries replicas whose addresses the cluster tells; switch
    it off behind a proxy or a forwarded port.
    `telemetry` traces calls; the caller owns and closes it.

    Raises Refusal (INVALID_CREDENTIALS, UNAUTHENTICATED, SESSION_LIMIT, ...), CannotConnect.
    """
    addresses = [address] if isinstance(address, str) else list(address)
    authority = Path(tls_ca) if tls_ca is not None else None
    if authority is not None and (problem := authority_problem(authority)):
        raise CannotConnect(f"tls_ca is of no use: {problem}")
    endpoints = Endpoints(addresses, authority, learns=learn_addresses)
    tracing = None
    if telemetry is not None or "opentelemetry.trace" in sys.modules:
        # Imported late: without tracing by the client or the application, it is not needed.
        from viewstamp.client.tracing import tracing_of

        tracing = tracing_of(telemetry)
    credentials = Credentials(username, password, personal_access_token, access_token)
    identity = AccessTokenSource(credentials, tracing)
    submitter = Submitter(endpoints, identity, register=register_session, tracing=tracing)
    try:
        await submitter.start(connect_timeout_s)
    except BaseException:
        await submitter.close()
        raise
    if telemetry is not None:
        telemetry.belongs_to(submitter.cluster_id)
    return Client(submitter, timeout_s, ServerStreams(endpoints, identity, tracing), tracing)


class Client(ClusterCalls):
    """One user's connection to a cluster; made by `connect`, used within one event loop.

    Concurrent calls are packed into few messages, and sent again after a disconnect under the same
    request number: each command takes effect once. A call that fails raises `Refusal` (the cluster
    decided so), `TimedOut` (it changed nothing), `OutcomeUnknown` (its deadline passed after it was
    sent) or `ClientClosed`. When the cluster ends the session, outstanding calls fail with Refusal
    SESSION_EVICTED (the detail `outcome` is "unknown" if the call had been sent before), and the
    next command registers a new session.
    """

    def __init__(
        self,
        submitter: Submitter,
        timeout_s: float | None,
        server_streams: ServerStreams,
        tracing: ClientTracing | None = None,
    ) -> None:
        self._submitter = submitter
        self._tracing = tracing
        self._server_streams = server_streams
        self._timeout_s = timeout_s
        self._revision: Consistency | None = None  # of the past, for each read
        self._loop = asyncio.get_running_loop()

    async def __aenter__(self) -> Client:
        """Return the client."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close the client."""
        await self.close()

    # Each domain is loaded at its first use, because a command of the command line needs only one.

    @cached_property
    def users(self) -> Users:
        """Users, their passwords and permissions."""
        from viewstamp.client.users import Users

        return Users(self)

    @cached_property
    def tokens(self) -> Tokens:
        """Personal access tokens."""
        from viewstamp.client.users import Tokens

        return Tokens(self)

    @cached_property
    def sessions(self) -> Sessions:
        """The sessions of clients."""
        from viewstamp.client.sessions import Sessions

        return Sessions(self)

    @cached_property
    def streams(self) -> Streams:
        """Streams."""
        from viewstamp.client.streams import Streams

        return Streams(self)

    @cached_property
    def topics(self) -> Topics:
        """Topics of streams, and their partitions."""
        from viewstamp.client.streams import Topics

        return Topics(self)

    @cached_property
    def groups(self) -> Groups:
        """Consumer groups of topics."""
        from viewstamp.client.groups import Groups

        return Groups(self, self._submitter.pulse)

    @cached_property
    def brokers(self) -> Brokers:
        """Brokers, and who has and leads the partitions of topics."""
        from viewstamp.client.brokers import Brokers

        return Brokers(self)

    @cached_property
    def snapshots(self) -> ClientSnapshots:
        """Snapshots of the cluster."""
        from viewstamp.client.snapshots import ClientSnapshots

        return ClientSnapshots(self)

    def within(self, timeout_s: float | None) -> Client:
        """Return this client with another deadline for each call: `client.within(2).users.get(1)`.

        Every method of it has this deadline, also each page of a list. It shares session and
        connection: close only one of the two.
        """
        shared = copy(self)
        for facade in _FACADES & vars(shared).keys():
            delattr(shared, facade)
        shared._timeout_s = timeout_s
        return shared

    def at(self, revision: int) -> Client:
        """Return this client with each read at an earlier revision: `client.at(7).users.get(1)`.

        Lists have that revision in all their pages. The cluster may have to build the state of it
        first, from a snapshot and the log; within a minute, so give the client time. A Refusal
        REVISION_COMPACTED has the `oldest` revision that can be read. Commands are as ever, and
        reads about the present alone (status, sessions, snapshots) are refused. Raises ValueError.
        """
        from viewstamp.client.consistency import at

        shared = self.within(self._timeout_s)
        shared._revision = at(revision)
        return shared

    @property
    def session_id(self) -> int:
        """The session that carries commands now; 0 before the first one."""
        return self._submitter.commands.session_id

    @property
    def cluster_id(self) -> bytes:
        """The cluster connected to: 16 bytes."""
        return self._submitter.cluster_id

    async def call(
        self,
        request: Message,
        *,
        consistency: Consistency = LINEARIZABLE,
        timeout_s: float | None = DEFAULT_TIMEOUT,
    ) -> Any:
        """Call the method of `request` and return its response, header included.

        `consistency` matters to reads alone, and not to those of a client `at` a revision. Raises
        the errors of the class, and TypeError for a message that is no request of a public method.
        """
        method = METHODS[type(request)]
        if method.field_levels:
            check_fields(method, request, self._submitter.feature_level)
        future = self._loop.create_future()
        call = PendingCall(method, encode(method, request), future, self._deadline(timeout_s))
        if method.normalize:
            call.timeout_s = call.deadline - self._loop.time()
        if (tracing := self._tracing) is not None:
            calls = tracing.calls
            # This repeats what `begin` does for nearly all calls: a call of it takes 1 % of a
            # client's time.
            if calls.left and not calls.is_kept and not tracing.context():
                calls.left -= 1
            else:
                call.trace = tracing.begin(method.full_name)
        if method.kind is MethodKind.COMMAND:
            self._submitter.add_command(call)
        else:
            self._submitter.add_read(call, self._revision or consistency)
        return await (future if call.trace is None else self._traced(call.trace, future))

    def stream(
        self, request: Message, *, timeout_s: float | None = DEFAULT_TIMEOUT
    ) -> AsyncIterator[Any]:
        """Iterate over the messages that answer `request`; the deadline is that of each message.

        Raises Refusal, TimedOut, CannotConnect, StreamBroken, ValueError for a client `at` a
        revision, and TypeError for a message that is not the request of such a method.
        """
        if self._revision is not None:
            raise ValueError("a stream of answers is about the present: open it without `at`")
        if timeout_s == DEFAULT_TIMEOUT:
            timeout_s = self._timeout_s
        return self._server_streams.open(request, timeout_s)

    def watch(
        self,
        *,
        from_revision: int = 0,
        stream: int | str | None = None,
        topic: int | str | None = None,
        group: int | str | None = None,
        domains: Iterable[routing_pb2.Stage.ValueType] = (),
        entity_types: Iterable[EntityType] = (),
    ) -> Watch:
        """Return a watch: it iterates over every committed change, in whole revisions, once each.

        `from_revision` is the first one wanted, 0 for the next one. `stream`, `topic`, `group`,
        `domains` and `entity_types` (messages such as `streams_pb2.Topic`, or their full names)
        narrow it down. The errors are those of the class `Watch`; ValueError for a negative
        revision. Close the watch before the client.
        """
        # Imported late: few clients watch.
        from viewstamp.client.watching import watch_request

        request = watch_request(from_revision, stream, topic, group, domains, entity_types)
        return self._server_streams.watch(
            self, request, cluster_id=self.cluster_id, opening_timeout_s=self._timeout_s
        )

    def informer(
        self,
        *entity_types: type[Message],
        stream: int | str | None = None,
        topic: int | str | None = None,
    ) -> Informer:
        """Return an informer: a local, consistent cache of all entities of some types.

        The types are `Stream`, `Topic`, `ConsumerGroup`, `User`, `Broker` and `Placements`;
        `stream` and `topic` narrow it down to what is in them. Raises ValueError for another type.
        """
        from viewstamp.client.informer import Informer

        return Informer(self, entity_types, stream=stream, topic=topic)

    def blame(
        self,
        *,
        stream: int | str | None = None,
        topic: int | str | None = None,
        group: int | str | None = None,
        user: int | str | None = None,
        broker: int | str | None = None,
        part: BlamedPartName | None = None,
        partition: int | None = None,
        from_revision: int = 0,
        page_size: int = 0,
    ) -> AsyncIterator[BlameEntityResponse]:
        """Iterate over pages of the changes of one entity, oldest first: who, when, what.

        Name a user, a broker, a stream, a topic with its stream, or a group with both. With `part`
        it is about the "tokens" of a user, the "placements" of a topic or of its `partition`, or
        the "members" of a group. A page may have no changes: it tells how far back changes are
        known, and from where to go on. Raises Refusal, ProtocolError, ValueError, AioRpcError.
        """
        from viewstamp.client.history import blame_pages, blame_request

        names = {"stream": stream, "topic": topic, "group": group, "user": user, "broker": broker}
        return blame_pages(
            lambda request: self._submitter.call_alone(request, self._timeout_s or CALL_TIMEOUT_S),
            blame_request(names, from_revision, page_size, part, partition),
        )

    async def batch(
        self, requests: Iterable[Message], *, timeout_s: float | None = DEFAULT_TIMEOUT
    ) -> list[Result]:
        """Send 1 to 8,190 commands as one request; return a response or Refusal for each.

        They are sequenced together and in order. Each one succeeds or is refused alone; see
        `transact` for all or nothing. Raises Refusal if the request as a whole was refused.

        A Refusal among the results changed nothing. One with `retry_delay_ms` in its details
        (COST_EXCEEDED, ANSWER_TOO_LARGE: too much for one log entry together with the others) may
        succeed if it is sent again after that time. The client does not do this by itself, because
        later commands may depend on the order.
        """
        commands = [(method_of(request), request) for request in requests]
        if not commands:
            return []
        await self._check_fields(commands)
        framed = [(method, encode(method, request)) for method, request in commands]
        future: asyncio.Future[list[Result]] = self._loop.create_future()
        batch: PackedBatch = batch_of(framed, future, self._deadline(timeout_s))
        if self._tracing is not None:
            batch.trace = self._tracing.begin(commands[0][0].full_name, len(commands))
        self._submitter.add_command(batch)
        return await (future if batch.trace is None else self._traced(batch.trace, future))

    async def transact(
        self,
        requests: Sequence[Message],
        *,
        validate_only: bool = False,
        timeout_s: float | None = DEFAULT_TIMEOUT,
    ) -> list[Any]:
        """Apply 1 to 128 commands as one: all take effect at one revision, or none does.

        With `validate_only` the answer is the same, and nothing changes. Returns their responses.
        Raises the Refusal of the first command that failed, with its index
        as `part` in the details.
        """
        methods = [method_of(request) for request in requests]
        await self._check_fields(list(zip(methods, requests, strict=True)))
        parts = [
            submit_pb2.TransactionPart(code=method.code, request=request.SerializeToString())
            for method, request in zip(methods, requests, strict=True)
        ]
        transaction = submit_pb2.TransactRequest(parts=parts, validate_only=validate_only)
        answer = await self.call(transaction, timeout_s=timeout_s)
        if len(answer.results) != len(parts):
            raise ProtocolError(f"{len(answer.results)} results answer {len(parts)} parts")
        try:
            responses: list[Any] = [
                method.response.FromString(result)
                for method, result in zip(methods, answer.results, strict=True)
            ]
        except DecodeError as error:
            raise ProtocolError(f"the cluster's answer cannot be read: {error}") from error
        for response in responses:
            response.header.CopyFrom(answer.header)
        return responses

    async def close(self, *, end_session: bool = True) -> None:
        """Finish outstanding calls, end the session, and close the connection.

        Waits at most 2 seconds. A session that could not be ended expires.
        """
        if end_session and self.session_id and self._submitter.is_connected:
            try:
                await self.call(sessions_pb2.EndSessionRequest(), timeout_s=CLOSE_TIMEOUT_S)
            except (ClientError, Refusal) as error:
                logger.info("session %d was not ended, it will expire: %s", self.session_id, error)
        await self._submitter.close()

    async def _check_fields(self, commands: Sequence[tuple[Method, Message]]) -> None:
        """Raise Refusal FEATURE_LEVEL_REQUIRED for fields that the cluster would ignore."""
        for method, request in commands:
            check_fields(method, request, self._submitter.feature_level)

    async def _traced(self, trace: CallTrace, future: asyncio.Future[Any]) -> Any:
        """Wait for the result of a sampled call."""
        assert self._tracing is not None, "nothing else samples calls"
        try:
            return await future
        finally:
            self._tracing.end(trace, future)

    def _deadline(self, timeout_s: float | None) -> float:
        if timeout_s == DEFAULT_TIMEOUT:
            timeout_s = self._timeout_s
        return math.inf if timeout_s is None else self._loop.time() + timeout_s
