"""The client: calls of any method, batches, transactions, and typed facades per domain."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import AsyncIterator, Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final

from google.protobuf.message import DecodeError, Message

from viewstamp.api.cluster.v1 import cluster_service_pb2 as cluster_pb2
from viewstamp.api.sessions.v1 import sessions_service_pb2 as sessions_pb2
from viewstamp.api.submit.v1 import submit_service_pb2 as submit_pb2
from viewstamp.client.consistency import LINEARIZABLE, Consistency
from viewstamp.client.errors import ClientError, ProtocolError
from viewstamp.client.groups import Groups
from viewstamp.client.methods import method_of, methods_by_request
from viewstamp.client.packing import PackedBatch, PendingCall, Result, batch_of, encode
from viewstamp.client.sessions import Sessions
from viewstamp.client.snapshots import ClientSnapshots
from viewstamp.client.streaming import ServerStreams
from viewstamp.client.streams import Streams, Topics
from viewstamp.client.submitter import Submitter
from viewstamp.client.tracing import CallTrace, ClientTracing, current_span
from viewstamp.client.transport import AccessTokenSource, Credentials, Endpoints
from viewstamp.client.users import Tokens, Users
from viewstamp.errors import Refusal
from viewstamp.routing import MethodKind

if TYPE_CHECKING:
    # The settings bring the Prometheus page along, which no caller without telemetry needs.
    from viewstamp.telemetry.settings import Telemetry

logger = logging.getLogger(__name__)

CALL_TIMEOUT_S: Final = 30.0
CONNECT_TIMEOUT_S: Final = 10.0
# How long `close` waits for outstanding commands and for the end of the session.
CLOSE_TIMEOUT_S: Final = 2.0
# Stands for "as the client was told at connect".
DEFAULT_TIMEOUT: Final = -1.0


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
    telemetry: Telemetry | None = None,
) -> Client:
    """Log in, register a session, open a stream, and return a client that keeps it open.

    `address` is one `host:port`, or those of several replicas. Give exactly one of `username` with
    `password`, `access_token`, `personal_access_token`. `timeout_s` is each call's deadline; None
    waits for ever. With `register_session` False the session is registered at the first command.
    `telemetry` traces calls; it is the caller's, who closes it.

    Raises Refusal (INVALID_CREDENTIALS, UNAUTHENTICATED, SESSION_LIMIT, ...), CannotConnect.
    """
    addresses = [address] if isinstance(address, str) else list(address)
    endpoints = Endpoints(addresses, Path(tls_ca) if tls_ca is not None else None)
    tracing = None
    if telemetry is not None and telemetry.recorder is not None:
        tracing = ClientTracing(telemetry.recorder, telemetry.sampler)
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


class Client:
    """One user's connection to a cluster; made by `connect`, used within one event loop.

    Concurrent calls are packed into few messages, and sent again after a disconnect under the same
    request number: each command takes effect once. A call that fails raises `Refusal` (the cluster
    decided so), `TimedOut` (it changed nothing), `OutcomeUnknown` (its deadline passed after it was
    sent) or `ClientClosed`. When the cluster ends the session, what was outstanding fails with
    Refusal SESSION_EVICTED (its detail `outcome` is "unknown" if it had been sent before), and the
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
        self._loop = asyncio.get_running_loop()
        self._methods = methods_by_request()
        self.users = Users(self)
        self.tokens = Tokens(self)
        self.sessions = Sessions(self)
        self.streams = Streams(self)
        self.topics = Topics(self)
        self.groups = Groups(self)
        self.snapshots = ClientSnapshots(self)

    async def __aenter__(self) -> Client:
        """Return the client."""
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close the client."""
        await self.close()

    @property
    def session_id(self) -> int:
        """The session that carries commands now; 0 before the first."""
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

        `consistency` matters to reads alone. Raises as the class says, TypeError for a message
        that is no public method's request.
        """
        method = self._methods.get(type(request)) or method_of(request)
        future = self._loop.create_future()
        call = PendingCall(method, encode(method, request), future, self._deadline(timeout_s))
        if method.normalize:
            call.timeout_s = call.deadline - self._loop.time()
        if (tracing := self._tracing) is not None:
            calls = tracing.calls
            # What `begin` does for nearly all calls, here: to call it takes 1 % of a client's time.
            if calls.left and not calls.is_kept and current_span() is None:
                calls.left -= 1
            else:
                call.trace = tracing.begin(method.full_name)
        if method.kind is MethodKind.COMMAND:
            self._submitter.add_command(call)
        else:
            self._submitter.add_read(call, consistency)
        return await (future if call.trace is None else self._traced(call.trace, future))

    def stream(
        self, request: Message, *, timeout_s: float | None = DEFAULT_TIMEOUT
    ) -> AsyncIterator[Any]:
        """Iterate over the messages that answer `request`; the deadline is that of each message.

        Raises Refusal, TimedOut, CannotConnect, StreamBroken, and TypeError for a message that is
        not the request of a method that answers by a stream.
        """
        if timeout_s == DEFAULT_TIMEOUT:
            timeout_s = self._timeout_s
        return self._server_streams.open(request, timeout_s)

    async def batch(
        self, requests: Iterable[Message], *, timeout_s: float | None = DEFAULT_TIMEOUT
    ) -> list[Result]:
        """Send 1 to 8,190 commands as one request; return a response or Refusal for each.

        They are sequenced together and in order, yet each succeeds or is refused by itself (for
        all or nothing see `transact`). Raises Refusal if the request as a whole was refused.

        A Refusal among the results changed nothing. One with `retry_delay_ms` in its details
        (COST_EXCEEDED, ANSWER_TOO_LARGE: too much for one log entry together with the others) may
        succeed if it is sent again after that time; the client does not do that by itself, since
        later commands may build on the order of these.
        """
        commands = [(method_of(request), request) for request in requests]
        if not commands:
            return []
        framed = [(method, encode(method, request)) for method, request in commands]
        future: asyncio.Future[list[Result]] = self._loop.create_future()
        batch: PackedBatch = batch_of(framed, future, self._deadline(timeout_s))
        if self._tracing is not None:
            batch.trace = self._tracing.begin(commands[0][0].full_name, len(commands))
        self._submitter.add_command(batch)
        return await (future if batch.trace is None else self._traced(batch.trace, future))

    async def transact(
        self, requests: Sequence[Message], *, timeout_s: float | None = DEFAULT_TIMEOUT
    ) -> list[Any]:
        """Apply 1 to 128 commands as one: all take effect at one revision, or none does.

        Returns their responses. Raises the Refusal of the first that failed, with its index as
        `part` in the details.
        """
        methods = [method_of(request) for request in requests]
        parts = [
            submit_pb2.TransactionPart(code=method.code, request=request.SerializeToString())
            for method, request in zip(methods, requests, strict=True)
        ]
        answer = await self.call(submit_pb2.TransactRequest(parts=parts), timeout_s=timeout_s)
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

    async def status(
        self,
        *,
        include_digests: bool = False,
        consistency: Consistency = LINEARIZABLE,
        timeout_s: float | None = DEFAULT_TIMEOUT,
    ) -> cluster_pb2.GetStatusResponse:
        """Return the cluster's status; with digests it walks over the whole state."""
        request = cluster_pb2.GetStatusRequest(include_digests=include_digests)
        response: cluster_pb2.GetStatusResponse = await self.call(
            request, consistency=consistency, timeout_s=timeout_s
        )
        return response

    async def step_down(self) -> cluster_pb2.StepDownResponse:
        """Have the primary hand over to another replica. Raises Refusal, grpc.aio.AioRpcError."""
        response: cluster_pb2.StepDownResponse = await self._submitter.call_alone(
            cluster_pb2.StepDownRequest(), self._timeout_s or CALL_TIMEOUT_S
        )
        return response

    async def raise_feature_level(
        self, level: int, expected: int, *, validate_only: bool = False
    ) -> cluster_pb2.RaiseFeatureLevelResponse:
        """Raise the feature level from `expected` to `level`, one above it, for good.

        Raises Refusal, grpc.aio.AioRpcError.
        """
        request = cluster_pb2.RaiseFeatureLevelRequest(
            level=level, expected=expected, validate_only=validate_only
        )
        response: cluster_pb2.RaiseFeatureLevelResponse = await self._submitter.call_alone(
            request, self._timeout_s or CALL_TIMEOUT_S
        )
        return response

    async def describe_cluster(
        self,
        description: str,
        *,
        expected_revision: int | None = None,
        validate_only: bool = False,
    ) -> cluster_pb2.SetClusterDescriptionResponse:
        """Say what the cluster is there for, which its status shows; "" for nothing.

        Raises Refusal, ClientError.
        """
        request = cluster_pb2.SetClusterDescriptionRequest(
            description=description,
            expected_revision=expected_revision,
            validate_only=validate_only,
        )
        response: cluster_pb2.SetClusterDescriptionResponse = await self.call(request)
        return response

    async def close(self, *, end_session: bool = True) -> None:
        """Finish what is outstanding, end the session, close the connection.

        Waits 2 seconds at most; a session that could not be ended expires by itself.
        """
        if end_session and self.session_id and self._submitter.is_connected:
            try:
                await self.call(sessions_pb2.EndSessionRequest(), timeout_s=CLOSE_TIMEOUT_S)
            except (ClientError, Refusal) as error:
                logger.info("session %d was not ended, it will expire: %s", self.session_id, error)
        await self._submitter.close()

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
