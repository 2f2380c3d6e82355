"""One domain service as the coordinator reaches it: connection, Apply stream, replay.

Batches go out in the order in which they were given, commands through the item log, reads not.
When the stream breaks, reads in flight fail, and the next stream starts with the whole item log:
answers that were given before are compared and discarded, the others are delivered as if nothing
had happened. The mux never learns of it.

Once a snapshot was adopted, a new stream begins with its section instead of the empty state, and
the item log with what came after its cut.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import grpc
import grpc.aio

from coordinator.mux.types import STATE_DIGEST_CODE
from coordinator.stages.base import BaseRefusedError, Gathering, SectionBase, activate, install
from coordinator.stages.item_log import Entry, ItemLog, ReplayDivergedError, settle
from coordinator.tasks import first_to_end
from viewstamp import limits
from viewstamp.api.domain.v1 import domain_service_pb2 as domain_pb2
from viewstamp.api.domain.v1 import domain_service_pb2_grpc as domain_grpc
from viewstamp.framing import encode_varint
from viewstamp.telemetry.sampling import TRACE_PARENT_CHARACTERS

RECONNECT_DELAY_MIN_MS: Final = 20
RECONNECT_DELAY_MAX_MS: Final = 500
CHANNEL_OPTIONS: Final = (
    ("grpc.max_send_message_length", limits.APPLY_MESSAGE_BYTES_MAX),
    ("grpc.max_receive_message_length", limits.APPLY_MESSAGE_BYTES_MAX),
    ("grpc.initial_reconnect_backoff_ms", RECONNECT_DELAY_MIN_MS),
    ("grpc.min_reconnect_backoff_ms", RECONNECT_DELAY_MIN_MS),
    ("grpc.max_reconnect_backoff_ms", RECONNECT_DELAY_MAX_MS),
)
APPLY_PATH: Final = "/viewstamp.api.domain.v1.DomainService/Apply"
# What comes before a traceparent that is added to an encoded batch; all are equally long.
_TRACED: Final = domain_pb2.ApplyRequest(
    batch=domain_pb2.Batch(trace_parents=["-" * TRACE_PARENT_CHARACTERS])
).SerializeToString()[:-TRACE_PARENT_CHARACTERS]
# Batches that wait together share a message up to so many bytes. Beyond, the first would wait
# for the others longer than a message costs.
SHARED_MESSAGE_BYTES_MAX: Final = 64 * limits.KIB
_BATCHES_TAG: Final = bytes((domain_pb2.ApplyRequest.BATCHES_FIELD_NUMBER << 3 | 2,))
# How a service says that a section cannot be its own, whoever sends it.
_REFUSALS_OF_BASE: Final = (grpc.StatusCode.DATA_LOSS, grpc.StatusCode.INVALID_ARGUMENT)

_log = logging.getLogger(__name__)


class ItemLogDroppedError(Exception):
    """A service died whose item log was dropped: only a restart of the coordinator helps."""


class WrongServiceError(Exception):
    """Another service than the one expected answers; the message says what to correct."""


class FencedError(Exception):
    """The service serves a newer coordinator, or another cluster: this process must end."""


@dataclass(frozen=True, slots=True)
class Identity:
    """Who this coordinator is, for the services to fence older ones."""

    cluster_id: bytes
    replica_id: int
    coordinator_sequence: int


@dataclass(frozen=True, slots=True)
class StageEvents:
    """What the client tells its owner. All are called on the event loop."""

    replied: Callable[[domain_pb2.BatchReply], None]
    deferred: Callable[[domain_pb2.QueryOutcome], None]
    connected: Callable[[domain_pb2.DescribeResponse], None]
    lost: Callable[[str], None]


@dataclass(slots=True)
class _Outgoing:
    message: bytes
    entry: Entry | None  # None for reads
    timeout_ms: int = limits.STAGE_TIMEOUT_MS
    is_answered: bool = True
    may_share: bool = False


class StageClient:
    """The way to one service. `run` keeps the stream up until it is cancelled.

    `base` is what a new stream starts from, None for the empty state; `gathering` holds it back
    until every section is known to be whole.
    """

    def __init__(
        self, stage: int, target: str, events: StageEvents, gathering: Gathering | None = None
    ) -> None:
        self.stage = stage
        self.target = target
        self.item_log = ItemLog()
        self.restarts = 0
        self.connected = False
        self.base: SectionBase | None = None
        self._gathering = gathering
        self._sequence = 0  # of this coordinator, once `run` knows it
        self._events = events
        self._outgoing: deque[_Outgoing] = deque()
        self._unanswered: deque[_Outgoing] = deque()
        self._wake = asyncio.Event()
        self._has_lost_reads = False
        self._replay_left = 0
        self._is_greeted = False
        self._answered_at = 0.0
        self._channel: grpc.aio.Channel | None = None

    def send(self, batch: domain_pb2.Batch, trace_parents: Sequence[str] = ()) -> None:
        """Send a batch: logged first if it has a sequence.

        `trace_parents` are for those who look on: they are not logged, so a replay has none.
        """
        message = domain_pb2.ApplyRequest(batch=batch).SerializeToString()
        if batch.sequence:
            entry = self.item_log.append(batch.sequence, message, cut_generation(batch))
            outgoing = _Outgoing(
                message + traced(trace_parents),
                entry,
                # What is added to an encoded message belongs to that one batch.
                may_share=not trace_parents,
            )
        else:
            outgoing = _Outgoing(message, None, read_timeout_ms(batch))
        if self.connected:
            self._put(outgoing)
        elif outgoing.entry is None:
            # Reads die with the connection; the mux is in the middle of a step, so later.
            self._has_lost_reads = True
            asyncio.get_running_loop().call_soon(self._tell_lost_reads)

    def move_base(self, base: SectionBase) -> None:
        """Start from the section of an adopted cut from now on, and forget what it includes.

        `base.sequence` is ignored: it is that of the cut's batch.
        """
        if not self.item_log.move_base(base.generation):
            raise ValueError(f"stage {self.stage} was never sent the cut {base.generation}")
        self.base = replace(base, sequence=self.item_log.base_sequence)
        if self.connected:
            release = domain_pb2.ReleaseCut(generation=base.generation)
            message = domain_pb2.ApplyRequest(release=release).SerializeToString()
            self._put(_Outgoing(message, None, is_answered=False))

    async def read_section(self, generation: int) -> AsyncGenerator[domain_pb2.ReadSectionResponse]:
        """Yield what the service froze at a cut. Raises grpc.RpcError: ask again later."""
        stub = domain_grpc.DomainServiceStub(self._connect())
        request = domain_pb2.ReadSectionRequest(
            generation=generation, coordinator_sequence=self._sequence
        )
        call = stub.ReadSection(request)
        try:
            async for response in call:
                yield response
        finally:
            call.cancel()

    def _put(self, outgoing: _Outgoing) -> None:
        self._outgoing.append(outgoing)
        self._wake.set()

    @property
    def item_log_bytes(self) -> int:
        """Bytes kept for the restart of the service."""
        return self.item_log.bytes

    @property
    def replaying(self) -> bool:
        """Whether answers to batches sent before the last restart are still coming in."""
        return self._replay_left > 0

    @property
    def coming_back(self) -> bool:
        """Whether a service is being told its state, or what it had been told before."""
        return self.replaying if self.connected else self._is_greeted

    async def describe(self) -> domain_pb2.DescribeResponse:
        """Wait for the service and ask what it claims. Raises grpc.RpcError."""
        stub = domain_grpc.DomainServiceStub(self._connect())
        response: domain_pb2.DescribeResponse = await stub.Describe(
            domain_pb2.DescribeRequest(),
            wait_for_ready=True,
            timeout=limits.STAGE_TIMEOUT_MS / 1000,
        )
        if response.stage != self.stage:
            raise WrongServiceError(
                f"{self.target} is the service of stage {response.stage}, not {self.stage}:"
                " correct --service"
            )
        return response

    async def normalize(
        self, request: domain_pb2.NormalizeRequest, timeout_ms: int
    ) -> domain_pb2.NormalizeResponse:
        """Ask the service for the loggable form of payloads. Raises grpc.RpcError."""
        stub = domain_grpc.DomainServiceStub(self._connect())
        response: domain_pb2.NormalizeResponse = await stub.Normalize(
            request, timeout=timeout_ms / 1000
        )
        return response

    async def run(self, identity: Identity) -> None:
        """Keep an Apply stream open, over deaths of the service, until cancelled.

        Raises FencedError, WrongServiceError, ItemLogDroppedError, ReplayDivergedError or
        BaseRefusedError where going on would be wrong: the process must end.
        """
        self._sequence = identity.coordinator_sequence
        while True:
            self._check_item_log()
            try:
                await self._stream(identity)
                reason = "the service closed the stream"
            except grpc.RpcError as error:
                if error.code() is grpc.StatusCode.FAILED_PRECONDITION:
                    raise FencedError(f"{self.target}: {error.details()}") from error
                reason = f"{error.code().name}: {error.details()}"
            except TimeoutError:
                reason = "no answer in time"
            self._lost(reason)
            await asyncio.sleep(RECONNECT_DELAY_MIN_MS / 1000)

    async def close(self) -> None:
        """Close the connection."""
        if self._channel is not None:
            await self._channel.close()

    def _connect(self) -> grpc.aio.Channel:
        if self._channel is None:
            self._channel = grpc.aio.insecure_channel(self.target, options=list(CHANNEL_OPTIONS))
        return self._channel

    async def _stream(self, identity: Identity) -> None:
        describe = await self.describe()
        call: Any = self._connect().stream_stream(APPLY_PATH)(wait_for_ready=True)
        try:
            await call.write(_hello(identity))
            await _read_hello_reply(call)
            self._is_greeted = True
            if not await self._start_from_base(call):
                return  # the base has moved on meanwhile: once more, from there
            self._opened(describe)
            writer = asyncio.create_task(self._write(call))
            watchdog = asyncio.create_task(self._watch_silence())
            reader = asyncio.create_task(self._read(call))
            await first_to_end(reader, writer, watchdog)
            # The writer only sees that the stream has ended: reading its status tells why.
            await call.read()
        finally:
            call.cancel()

    async def _start_from_base(self, call: Any) -> bool:
        """Install the base, if there is one; return whether it is still the base."""
        base = self.base
        if base is None:
            return True
        try:
            try:
                installed = await install(call, base)
                if self._gathering is not None:
                    await self._gathering.installed(self.stage, installed)
                await activate(call)
            # It ended the stream while we were writing, or while it was held back.
            except asyncio.InvalidStateError:
                await call.read()  # raises the status that it ended with
                raise TimeoutError from None
        except grpc.RpcError as error:
            if error.code() in _REFUSALS_OF_BASE:
                raise BaseRefusedError(
                    f"{self.target} does not accept its section of snapshot {base.generation}: "
                    f"{error.details()}"
                ) from error
            raise
        return self.base is base

    def _tell_lost_reads(self) -> None:
        if self._has_lost_reads:
            self._has_lost_reads = False
            self._events.lost("not connected")

    def _check_item_log(self) -> None:
        if self.item_log.dropped:
            raise ItemLogDroppedError(
                f"the service at {self.target} died and its item log had been dropped"
            )

    def _opened(self, describe: domain_pb2.DescribeResponse) -> None:
        # Once more: what was sent while the service was away may have been too much. A machine
        # that was told nothing would answer reads from its empty state.
        self._check_item_log()
        # Before the first read of this connection, which must not be taken for one of those.
        self._tell_lost_reads()
        self._outgoing = deque(
            _Outgoing(entry.message, entry, may_share=True) for entry in self.item_log
        )
        self._unanswered.clear()
        self._replay_left = len(self._outgoing)
        self._answered_at = asyncio.get_running_loop().time()
        self.connected = True
        self._wake.set()
        self._events.connected(describe)

    def _lost(self, reason: str) -> None:
        was_connected, self.connected = self.connected, False
        self._is_greeted = False
        self._outgoing.clear()
        self._unanswered.clear()
        self._replay_left = 0
        if was_connected:
            self.restarts += 1
            _log.warning("service lost", extra={"fields": {"target": self.target, "why": reason}})
            self._events.lost(reason)

    async def _write(self, call: Any) -> None:
        while True:
            while self._outgoing:
                together = take_together(self._outgoing)
                self._unanswered.extend(each for each in together if each.is_answered)
                try:
                    await call.write(joined([each.message for each in together]))
                except asyncio.InvalidStateError:
                    return  # the service died since the last write
            self._wake.clear()
            await self._wake.wait()

    async def _read(self, call: Any) -> None:
        while True:
            message = await call.read()
            if message is grpc.aio.EOF:
                return
            self._answered_at = asyncio.get_running_loop().time()
            response = domain_pb2.ApplyResponse.FromString(message)
            if response.HasField("deferred"):
                self._events.deferred(response.deferred)
            elif response.HasField("replies"):
                for reply in response.replies.replies:
                    self._answered(reply)
            else:
                self._answered(response.batch)

    def _answered(self, reply: domain_pb2.BatchReply) -> None:
        outgoing = self._unanswered.popleft()
        self._replay_left = max(0, self._replay_left - 1)
        if outgoing.entry is None:
            self._events.replied(reply)
            return
        if reply.sequence != outgoing.entry.sequence:
            raise ReplayDivergedError(
                f"{self.target} answered batch {reply.sequence} where"
                f" {outgoing.entry.sequence} was due"
            )
        if settle(outgoing.entry, reply.SerializeToString()):
            self._events.replied(reply)

    async def _watch_silence(self) -> None:
        loop = asyncio.get_running_loop()
        waiting_since = loop.time()
        while True:
            await asyncio.sleep(limits.STAGE_TIMEOUT_MS / 1000 / 8)
            # The clock runs only while an answer is due; each answer of a replay winds it up.
            if not self._unanswered:
                waiting_since = loop.time()
                continue
            silent_ms = (loop.time() - max(waiting_since, self._answered_at)) * 1000
            if silent_ms > self._unanswered[0].timeout_ms:
                raise TimeoutError


def take_together(waiting: deque[_Outgoing]) -> list[_Outgoing]:
    """Take what goes into the next message: one, or all that may share it and fit."""
    taken = [waiting.popleft()]
    size = len(taken[0].message)
    while taken[0].may_share and waiting and waiting[0].may_share:
        size += len(waiting[0].message)
        if size > SHARED_MESSAGE_BYTES_MAX:
            break
        taken.append(waiting.popleft())
    return taken


def joined(messages: Sequence[bytes]) -> bytes:
    """Return one message for encoded requests that hold a batch each."""
    if len(messages) == 1:
        return messages[0]
    # A field of one batch and one of several are alike on the wire: see `Batches`.
    batches = b"".join(messages)
    return _BATCHES_TAG + encode_varint(len(batches)) + batches


def read_timeout_ms(batch: domain_pb2.Batch) -> int:
    """Return how long the answer to reads may take: a state digest walks over the whole state."""
    walks = any(
        item.WhichOneof("kind") == "query" and item.query.code == STATE_DIGEST_CODE
        for item in batch.items
    )
    return limits.STATE_DIGEST_TIMEOUT_MS if walks else limits.STAGE_TIMEOUT_MS


def traced(trace_parents: Sequence[str]) -> bytes:
    """Return what adds traceparents to an encoded batch: encodings joined are one message.

    Each is as long as `format_trace_parent` makes it.
    """
    return b"".join([_TRACED + text.encode() for text in trace_parents])


def cut_generation(batch: domain_pb2.Batch) -> int:
    """Return the generation of the cut that a batch holds, 0 if it holds none."""
    if len(batch.items) == 1 and batch.items[0].HasField("cut"):
        return batch.items[0].cut.generation
    return 0


def _hello(identity: Identity) -> bytes:
    hello = domain_pb2.Hello(
        cluster_id=identity.cluster_id,
        replica_id=identity.replica_id,
        coordinator_sequence=identity.coordinator_sequence,
    )
    return domain_pb2.ApplyRequest(hello=hello).SerializeToString()


async def _read_hello_reply(call: Any) -> None:
    # Not `wait_for`, which loses a cancellation that comes together with the answer.
    async with asyncio.timeout(limits.STAGE_TIMEOUT_MS / 1000):
        message = await call.read()
    if message is grpc.aio.EOF:
        # Reading the status raises the error the service ended the stream with.
        await call.read()
        raise TimeoutError
