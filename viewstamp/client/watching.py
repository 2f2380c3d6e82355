"""`client.watch`: every committed change, once, in whole revisions, whatever happens to replicas.

A watch keeps nothing but its place: the last revision of which everything has come. When a call
ends for a reason that does not concern the caller, the watch opens another one behind that place,
at another replica where that helps.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import deque
from collections.abc import Iterable
from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from google.protobuf.message import DecodeError, Message

from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.api.routing.v1 import routing_pb2
from viewstamp.api.watch.v1 import watch_service_pb2 as watch_pb2
from viewstamp.cancellation import answer_of
from viewstamp.client.errors import CannotConnect, ProtocolError, StreamBroken, TimedOut
from viewstamp.client.identifiers import FacadeClient, identifier
from viewstamp.client.revisions import RevisionJoin, WatchedRevision
from viewstamp.client.transport import LEARNED_TIMEOUT_S, AccessTokenSource, Endpoints
from viewstamp.client.verdicts import (
    ELSEWHERE,
    PRIMARY_DETAIL,
    Backoff,
    RetryVerdict,
    told_delay_s,
    verdict_on,
)
from viewstamp.client.watch_calls import WATCH_SILENCE_MAX_S, WatchCall
from viewstamp.client.watch_names import with_ids
from viewstamp.errors import Refusal

if TYPE_CHECKING:
    from viewstamp.client.tracing import ClientTracing

logger = logging.getLogger(__name__)

# What a watch shows, and what narrows it down: the class of an entity's message, or its full name.
EntityType: TypeAlias = type[Message] | str
# Modules of the entities, by package.
_MODULES: Final = MappingProxyType(
    {
        "viewstamp.api.users.v1": "users_pb2",
        "viewstamp.api.streams.v1": "streams_pb2",
        "viewstamp.api.brokers.v1": "brokers_pb2",
        "viewstamp.api.consumer_groups.v1": "consumer_groups_pb2",
    }
)
# Fields that other entities decide: changes do not have them. By full name of the type.
DERIVED_FIELDS: Final = MappingProxyType(
    {
        "viewstamp.api.streams.v1.Stream": ("topics_count",),
        "viewstamp.api.brokers.v1.Broker": ("replicas_count",),
        "viewstamp.api.consumer_groups.v1.ConsumerGroup": ("state", "members_count", "members"),
    }
)
# Another replica may have room, or a newer build. If none has, the caller is told.
_OF_A_REPLICA: Final = frozenset({Reason.REASON_QUOTA_EXCEEDED, Reason.REASON_UNIMPLEMENTED})
# The detail of ACCESS_CHANGED up to which everything has come.
_REVISION_DETAIL: Final = "revision"


def decoded(change: watch_pb2.Change) -> Any:
    """Return the public message of a change, for example a `streams_pb2.Topic`.

    Raises ProtocolError for a type that this build does not know.
    """
    package, _, name = change.entity_type.rpartition(".")
    module = _MODULES.get(package)
    message = getattr(import_module(f"{package}.{module}"), name, None) if module else None
    if message is None:
        raise ProtocolError(f"this build knows no {change.entity_type}: upgrade it")
    try:
        return message.FromString(change.entity)
    except DecodeError as error:
        raise ProtocolError(f"a {change.entity_type} cannot be read: {error}") from error


def watch_request(
    from_revision: int = 0,
    stream: int | str | None = None,
    topic: int | str | None = None,
    group: int | str | None = None,
    domains: Iterable[routing_pb2.Stage.ValueType] = (),
    entity_types: Iterable[EntityType] = (),
) -> watch_pb2.WatchRequest:
    """Return the request of a watch. Raises ValueError for a negative revision."""
    if from_revision < 0:
        raise ValueError(f"revisions start at 1, not {from_revision}; 0 means the next one")
    return watch_pb2.WatchRequest(
        from_revision=from_revision,
        stream=None if stream is None else identifier(stream),
        topic=None if topic is None else identifier(topic),
        group=None if group is None else identifier(group),
        domains=domains,
        entity_types=[_full_name(each) for each in entity_types],
        progress_notifications=True,
    )


class Watch:
    """Iterates over whole revisions, each exactly once and in order; made by `Client.watch`.

    `async with` opens it, so that everything committed afterwards will come; the iteration opens it
    otherwise. One task at a time may use it. A cancelled iteration loses nothing: go on with the
    next one. It goes on after failures of replicas and after expired tokens, for as long as it
    takes. What ends it is raised by the iteration: Refusal (REVISION_COMPACTED, PERMISSION_DENIED,
    UNAUTHENTICATED, STREAM_NOT_FOUND, TOPIC_NOT_FOUND, GROUP_NOT_FOUND, ...), RevisionTooLarge,
    ProtocolError (another cluster answers). Only the opening raises CannotConnect, TimedOut,
    QUOTA_EXCEEDED and other refusals of replicas that cannot serve it now.
    """

    def __init__(
        self,
        client: FacadeClient,
        endpoints: Endpoints,
        identity: AccessTokenSource,
        request: watch_pb2.WatchRequest,
        *,
        cluster_id: bytes = b"",
        opening_timeout_s: float | None = None,
        tracing: ClientTracing | None = None,
    ) -> None:
        """Watch what `request` names, in the cluster of `cluster_id` if that is given.

        `opening_timeout_s` is how long the first opening may take; None waits for ever.
        """
        self._client = client
        self._endpoints = endpoints
        self._identity = identity
        self._request = request
        self._cluster_id = cluster_id
        self._tracing = tracing
        self._opening_timeout_s = math.inf if opening_timeout_s is None else opening_timeout_s
        self._opening_deadline: float | None = None
        begin = request.from_revision
        self._join = RevisionJoin(begin - 1 if begin else None)
        self._ready: deque[WatchedRevision] = deque()
        self._call: WatchCall | None = None
        self._backoff = Backoff()
        self._has_opened = self._has_renewed = self._is_closed = False
        self._refusals_in_a_row = 0

    async def __aenter__(self) -> Watch:
        """Open it. Raises the errors of the class."""
        try:
            while not self._has_opened:
                await self._advance()
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close it."""
        await self.close()

    def __aiter__(self) -> Watch:
        return self

    async def __anext__(self) -> WatchedRevision:
        """Return the next revision that changes what is watched. Raises the errors of the class."""
        while not self._ready:
            if self._is_closed:
                raise StopAsyncIteration
            await self._advance()
        return self._ready.popleft()

    @property
    def revision(self) -> int:
        """The revision up to which the iteration has given out everything; 0 before it is open.

        A program that has worked off everything so far may begin anew behind it.
        """
        if self._ready:
            return self._ready[0].revision - 1
        return self._join.complete_revision or 0

    @property
    def cluster_id(self) -> bytes:
        """The cluster to which the revisions belong: 16 bytes; empty if it is not known yet."""
        return self._cluster_id

    async def come_to(self, revision: int) -> list[WatchedRevision]:
        """Return what is next, waiting until `revision` has come; nothing if it brings nothing.

        Raises the errors of the class.
        """
        while not self._ready and self.revision < revision:
            await self._advance()
        taken = list(self._ready)
        self._ready.clear()
        return taken

    async def close(self) -> None:
        """End it; the iteration ends. The revisions that were not taken are dropped."""
        self._is_closed = True
        self._ready.clear()
        await self._drop_call()

    # --- One step ---

    async def _advance(self) -> None:
        """Open a call, or take in one message; after a failure, pause. Raises what is final."""
        # The task is the program's own, which may have been cancelled before, and cleans up.
        await answer_of(self._step())

    async def _step(self) -> None:
        try:
            await (self._open() if self._call is None else self._receive(self._call))
        except (Refusal, CannotConnect, StreamBroken, TimedOut) as error:
            token = "" if self._call is None else self._call.access_token
            await self._drop_call()
            await asyncio.sleep(self._pause_after(error, token))
        except BaseException:
            # A read that was cancelled may have taken a message: it has to come again.
            await self._drop_call()
            raise

    async def _open(self) -> None:
        if self._opening_deadline is None:
            self._opening_deadline = asyncio.get_running_loop().time() + self._opening_timeout_s
            # A name may mean another entity tomorrow, and an id never does.
            self._request = await with_ids(self._client, self._request)
        request = watch_pb2.WatchRequest()
        request.CopyFrom(self._request)
        request.cluster_id = self._cluster_id
        if self._join.complete_revision is not None:
            request.from_revision = self._join.complete_revision + 1
        self._call = call = WatchCall(self._endpoints.current, self._tracing)
        is_unconfirmed = self._endpoints.is_unconfirmed
        timeout_s = LEARNED_TIMEOUT_S if is_unconfirmed else WATCH_SILENCE_MAX_S
        first = await call.open(request, self._identity, timeout_s=timeout_s)
        try:
            self._check_cluster(first, call)
        except ProtocolError as error:
            if not is_unconfirmed:
                raise
            raise StreamBroken(str(error)) from error
        self._endpoints.reached()
        self._join.begin(first.header.revision)
        self._has_opened, self._has_renewed, self._refusals_in_a_row = True, False, 0

    async def _receive(self, call: WatchCall) -> None:
        response = await call.read()
        self._check_cluster(response, call)
        self._ready += self._join.take(response)
        # The first message of a call alone does not show that the replica serves the feed.
        self._backoff.reset()

    def _check_cluster(self, response: watch_pb2.WatchResponse, call: WatchCall) -> None:
        told = response.header.cluster_id
        if self._cluster_id not in (b"", told):
            raise ProtocolError(
                f"another cluster answers at {call.address}: {told.hex()}, and the watch belongs to"
                f" {self._cluster_id.hex()}"
            )
        self._cluster_id = told

    async def _drop_call(self) -> None:
        call, self._call = self._call, None
        self._join.forget_parts()
        if call is not None:
            await call.close()

    # --- Failures ---

    def _pause_after(self, error: Exception, token: str) -> float:
        """Prepare another attempt; return the seconds before it. Raises `error` if it is final."""
        logger.info("the watch at %s ended: %s", self._endpoints.current.address, error)
        delay_s = 0.0
        is_for_now = isinstance(error, Refusal) and verdict_on(error) in ELSEWHERE
        if self._endpoints.is_unconfirmed and not is_for_now:
            # Another cluster may listen at an address that only this one told.
            self._identity.forget_renewable()
            self._endpoints.failed()
        elif isinstance(error, Refusal):
            self._prepare_after(error, token)
            delay_s = told_delay_s(error)
        else:
            self._endpoints.failed()
        if not self._has_opened and self._has_tried_long:
            raise error
        return delay_s + self._backoff.next_s()

    @property
    def _has_tried_long(self) -> bool:
        deadline = self._opening_deadline
        return deadline is not None and asyncio.get_running_loop().time() >= deadline

    def _prepare_after(self, refusal: Refusal, token: str) -> None:
        """Do what a refusal asks for. Raises it if it is final."""
        verdict = self._verdict_on(refusal)
        if verdict is RetryVerdict.REOPEN:
            self._join.skip_to(int(refusal.details.get(_REVISION_DETAIL, 0)))
        elif verdict is RetryVerdict.RENEW and self._identity.can_renew and not self._has_renewed:
            self._has_renewed = True
            self._identity.forget(token)
        elif verdict in ELSEWHERE:
            # Every member serves watches. One that was removed names who leads now.
            self._endpoints.advance(refusal.details.get(PRIMARY_DETAIL))
        else:
            raise refusal

    def _verdict_on(self, refusal: Refusal) -> RetryVerdict:
        if refusal.reason in _OF_A_REPLICA:
            self._refusals_in_a_row += 1
            is_full = refusal.reason == Reason.REASON_QUOTA_EXCEEDED
            if self._refusals_in_a_row < len(self._endpoints) or (is_full and self._has_opened):
                return RetryVerdict.RECONNECT
            return RetryVerdict.FINAL
        if refusal.reason == Reason.REASON_READ_DEADLINE:
            return RetryVerdict.RECONNECT  # this replica may lag, or be cut off
        return verdict_on(refusal)


def _full_name(entity_type: EntityType) -> str:
    return entity_type if isinstance(entity_type, str) else str(entity_type.DESCRIPTOR.full_name)
