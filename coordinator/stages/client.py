"""One domain service as the coordinator reaches it: connection, Apply stream, replay.

Batches leave in the order given, commands through the item log, reads not. When the stream breaks,
reads in flight fail, and the next stream starts with the whole item log: repeated answers are
compared and discarded, new ones are delivered as if nothing had happened. The mux never notices.

Once a snapshot is adopted, a new stream begins with its section instead of the empty state, and the
item log begins after its cut.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import grpc
import grpc.aio

from coordinator.base.clock import monotonic_ms
from coordinator.base.slices import SlicedWork, Steps, TimeSlice
from coordinator.base.tasks import first_to_end
from coordinator.stages.base import (
    Barrier,
    BaseExchangedError,
    BaseRefusedError,
    InstalledSection,
    activate,
    install,
)
from coordinator.stages.busyness import LOOK_INTERVAL_MS, Busyness
from coordinator.stages.channel import (
    RECONNECT_DELAY_MIN_MS,
    ServiceChannel,
    ServiceCredentials,
)
from coordinator.stages.greeting import CoordinatorIdentity, hello_of, read_hello_reply
from coordinator.stages.item_log import ItemLog, ReplayDivergedError, settle
from coordinator.stages.outgoing import OutgoingBatch, joined, take_together, traced
from coordinator.stages.poison import Poison
from viewstamp import limits
from viewstamp.api.domain.v1 import domain_service_pb2 as domain_pb2
from viewstamp.api.domain.v1 import domain_service_pb2_grpc as domain_grpc
from viewstamp.cancellation import answer_of, end_if_cancelled
from viewstamp.telemetry import fields

APPLY_PATH: Final = "/viewstamp.api.domain.v1.DomainService/Apply"
# The codes by which a service says that a section can never be its own.
_REFUSALS_OF_BASE: Final = (grpc.StatusCode.DATA_LOSS, grpc.StatusCode.INVALID_ARGUMENT)
_HEARD: Final = domain_pb2.ApplyRequest(heard=domain_pb2.AttemptHeard()).SerializeToString()

_log = logging.getLogger(__name__)


class ItemLogDroppedError(Exception):
    """A service died whose item log was dropped: only a restart of the coordinator helps."""


class WrongServiceError(Exception):
    """Another service than expected answers; the message says what to correct."""


class FencedError(Exception):
    """The service serves a newer coordinator, or another cluster: this process must end."""


def as_it_came(reply: domain_pb2.BatchReply) -> Steps[Any]:
    """Return an answer unchanged, in no steps."""
    yield from ()
    return reply


@dataclass(frozen=True, slots=True)
class StageEvents:
    """What the client tells its owner. All are called on the event loop.

    `replied` gets what `decode` makes of an answer, in steps between which the loop may turn.
    `busy` gets how long the service has been at one batch, at every look while that is too long,
    and 0 once it continues. `gave_up` gets a command that has ended too many processes, and is
    refused from then on. `item_log_dropped` is told when the item log can no longer restart the
    service, and when it can again.
    """

    replied: Callable[[Any], None]
    deferred: Callable[[domain_pb2.QueryOutcome], None]
    connected: Callable[[domain_pb2.DescribeResponse], None]
    lost: Callable[[str], None]
    busy: Callable[[int], None] = lambda ms: None
    gave_up: Callable[[domain_pb2.Attempt], None] = lambda attempt: None
    item_log_dropped: Callable[[bool], None] = lambda is_dropped: None
    decode: Callable[[domain_pb2.BatchReply], Steps[Any]] = as_it_came


class StageClient:
    """The way to one service. `run` keeps the stream up until it is cancelled.

    `base` is the section from which a new stream starts, None for the empty state; `barrier`
    holds the stream back until every section is known to be whole.
    """

    def __init__(
        self,
        stage: int,
        target: str,
        events: StageEvents,
        barrier: Barrier | None = None,
        base: InstalledSection | None = None,
        credentials: ServiceCredentials | None = None,
    ) -> None:
        self.stage = stage
        self.target = target
        self.item_log = ItemLog(tell=events.item_log_dropped)
        self.restarts = 0
        self.connected = False
        self.base = base
        self._barrier = barrier
        self._sequence = 0  # of this coordinator, once `run` knows it
        self._events = events
        self._outgoing: deque[OutgoingBatch] = deque()
        self._unanswered: deque[OutgoingBatch] = deque()
        self._unanswered_bytes = 0
        self._wake = asyncio.Event()
        self._has_lost_reads = False
        self._replay_left = 0
        self._is_greeted = False
        self._is_loading = False  # a section: from its first block until its verdict
        self._steps = 0  # blocks taken and answers given on this stream
        self._steps_needed = 0  # to get further than processes that died while coming back
        self._busyness = Busyness()
        self._poison = Poison(events.gave_up)
        self._line = ServiceChannel(target, credentials)
        self._told_unreachable = ""

    def send(self, batch: domain_pb2.Batch, trace_parents: Sequence[str] = ()) -> None:
        """Send a batch; log it first if it has a sequence.

        `trace_parents` are for tracing: they are not logged, so a replay has none.
        """
        message = domain_pb2.ApplyRequest(batch=batch).SerializeToString()
        if batch.sequence:
            entry = self.item_log.append(batch.sequence, message, cut_generation(batch))
            outgoing = OutgoingBatch(
                message + traced(trace_parents),
                entry,
                # The addition to an encoded message belongs to that one batch.
                may_share=not trace_parents,
            )
        else:
            outgoing = OutgoingBatch(message, None)
        if self.connected:
            self._put(outgoing)
        elif outgoing.entry is None:
            # Reads die with the connection; tell later, because the mux is in the middle of a step.
            self._has_lost_reads = True
            asyncio.get_running_loop().call_soon(self._tell_lost_reads)

    def move_base(self, base: InstalledSection) -> None:
        """Start from the section of an adopted cut from now on, and forget the batches it includes.

        `base.sequence` is ignored: the sequence of the cut's batch is used.
        """
        if not self.item_log.move_base(base.generation):
            raise ValueError(f"stage {self.stage} was never sent the cut {base.generation}")
        self.base = replace(base, sequence=self.item_log.base_sequence)
        self._poison.forget(self.item_log.base_sequence)
        self._steps_needed = 0  # there is less to replay
        if self.connected:
            release = domain_pb2.ReleaseCut(generation=base.generation)
            message = domain_pb2.ApplyRequest(release=release).SerializeToString()
            self._put(OutgoingBatch(message, None, is_answered=False))

    def exchange_base(self, base: InstalledSection) -> None:
        """Start from these layers of the same section, if that is still the base."""
        if self.base is not None and self.base.generation == base.generation:
            self.base = replace(base, sequence=self.base.sequence)

    async def read_section(self, generation: int) -> AsyncGenerator[domain_pb2.ReadSectionResponse]:
        """Yield the section that the service froze at a cut. Raises grpc.RpcError: ask again
        later."""
        stub = domain_grpc.DomainServiceStub(self._line.present())
        request = domain_pb2.ReadSectionRequest(
            generation=generation, coordinator_sequence=self._sequence
        )
        call = stub.ReadSection(request)
        try:
            async for response in call:
                yield response
        finally:
            call.cancel()

    def _put(self, outgoing: OutgoingBatch) -> None:
        self._outgoing.append(outgoing)
        self._wake.set()

    @property
    def item_log_bytes(self) -> int:
        """Bytes kept for the restart of the service."""
        return self.item_log.bytes

    @property
    def replaying(self) -> bool:
        """Whether answers to batches sent before the last restart are still arriving."""
        return self._replay_left > 0

    @property
    def coming_back(self) -> bool:
        """Whether a service is being brought up to date, and gets further than the last one.

        A service whose processes die one after the other at the same place is not coming back.
        """
        if self.is_busy or self._steps < self._steps_needed:
            return False
        return self.replaying if self.connected else self._is_greeted

    @property
    def is_busy(self) -> bool:
        """Whether it lives and has been at one batch long enough to report."""
        return self._busyness.is_busy

    async def describe(self) -> domain_pb2.DescribeResponse:
        """Wait for the service and return what it claims. Raises grpc.RpcError."""
        stub = domain_grpc.DomainServiceStub(self._line.present())
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
        stub = domain_grpc.DomainServiceStub(self._line.present())
        # A Submit stream that went on after a lost cancellation would keep its process from ending.
        call = stub.Normalize(request, timeout=timeout_ms / 1000)
        response: domain_pb2.NormalizeResponse = await answer_of(call)
        return response

    async def run(self, identity: CoordinatorIdentity) -> None:
        """Keep an Apply stream open, over deaths of the service, until cancelled.

        Raises FencedError, WrongServiceError, ItemLogDroppedError, ReplayDivergedError or
        BaseRefusedError where continuing would be wrong: the process must end.
        """
        self._sequence = identity.coordinator_sequence
        while True:
            end_if_cancelled()
            self._check_item_log()
            try:
                await self._stream(identity)
                reason = "the service closed the stream"
            except grpc.RpcError as error:
                if error.code() is grpc.StatusCode.FAILED_PRECONDITION:
                    raise FencedError(f"{self.target}: {error.details()}") from error
                reason = f"{error.code().name}: {error.details()}"
            except TimeoutError:
                reason = "it did not greet in time"
            was_greeted = self._is_greeted
            self._lost(reason)
            if not was_greeted:
                self._tell_unreachable(await self._line.explained(reason))
            await self._line.renew()
            await asyncio.sleep(RECONNECT_DELAY_MIN_MS / 1000)

    def _tell_unreachable(self, why: str) -> None:
        if why and why != self._told_unreachable:
            known = fields(target=self.target, why=why)
            _log.warning("a service cannot be reached; trying again", extra=known)
        self._told_unreachable = why

    async def close(self) -> None:
        """Close the connection."""
        await self._line.close()

    async def _stream(self, identity: CoordinatorIdentity) -> None:
        describe = await self.describe()
        call: Any = self._line.present().stream_stream(APPLY_PATH)(wait_for_ready=True)
        try:
            await call.write(hello_of(identity))
            await read_hello_reply(call)
            self._is_greeted, self._steps = True, 0
            watch = asyncio.create_task(self._watch_busyness())
            await first_to_end(asyncio.create_task(self._talk(call, describe)), watch)
        finally:
            call.cancel()

    async def _talk(self, call: Any, describe: domain_pb2.DescribeResponse) -> None:
        if not await self._start_from_base(call):
            self._is_greeted = False  # nobody was lost
            return  # the base has moved on meanwhile: try again from there
        self.opened(describe)
        writer = asyncio.create_task(self.write(call))
        reader = asyncio.create_task(self._read(call))
        await first_to_end(reader, writer)
        # The writer only sees that the stream has ended: reading its status tells why.
        await call.read()

    async def _start_from_base(self, call: Any) -> bool:
        """Install the base, if there is one; return whether it is still the base."""
        base = self.base
        if base is None:
            return True
        try:
            try:
                self._is_loading = True
                installed = await install(call, base, self._takes_step)
                self._is_loading = False
                if self._barrier is not None:
                    await self._barrier.installed(self.stage, installed)
                await activate(call)
            # The service ended the stream while we were writing, or while it was held back.
            except asyncio.InvalidStateError:
                await call.read()  # raises the status that it ended with
                raise TimeoutError from None
        except BaseExchangedError:
            return False  # and the next attempt begins with the new base
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

    def opened(self, describe: domain_pb2.DescribeResponse) -> None:
        """Begin with a service that has described itself: send again what it did not answer."""
        # Too much may have been sent since: a machine told nothing would answer reads as if empty.
        self._check_item_log()
        # Before the first read of this connection, which must not count as lost.
        self._tell_lost_reads()
        self._outgoing = deque(self._replayed())
        self._forget_unanswered()
        self._replay_left = sum(each.is_answered for each in self._outgoing)
        if not self._replay_left:
            self._steps_needed = 0
        self.connected = True
        self._wake.set()
        self._events.connected(describe)

    def _replayed(self) -> Iterator[OutgoingBatch]:
        """Yield the item log for a replay: batches that killed a service follow a warning."""
        for entry in self.item_log:
            isolate = self._poison.isolation(entry.sequence)
            if isolate is not None:
                message = domain_pb2.ApplyRequest(isolate=isolate).SerializeToString()
                yield OutgoingBatch(message, None, is_answered=False)
            yield OutgoingBatch(entry.message, entry, may_share=isolate is None)

    def _lost(self, reason: str) -> None:
        was_connected, self.connected = self.connected, False
        was_greeted, self._is_greeted = self._is_greeted, False
        self._is_loading = False
        if was_greeted and (self._replay_left or not was_connected):
            self._steps_needed = max(self._steps_needed, self._steps + 1)
        self._outgoing.clear()
        entries = [each.entry for each in self._unanswered if each.entry is not None]
        self._poison.died([entry.sequence for entry in entries])
        self._forget_unanswered()
        self._replay_left = 0
        self._gets_on()
        if was_greeted:
            self.restarts += 1
            _log.warning("service lost", extra=fields(target=self.target, why=reason))
        if was_connected:
            self._events.lost(reason)

    async def write(self, call: Any) -> None:
        """Write to a stream, until cancelled, what is due and may be under way."""
        while True:
            while self._outgoing and self._may_send():
                together = take_together(self._outgoing)
                due = [each for each in together if each.is_answered]
                self._unanswered.extend(due)
                self._unanswered_bytes += sum(len(each.message) for each in due)
                try:
                    await call.write(joined([each.message for each in together]))
                except asyncio.InvalidStateError:
                    return  # the service died since the last write
            self._wake.clear()
            await self._wake.wait()

    def _may_send(self) -> bool:
        """Return whether a sign of life would not wait too long behind one more message."""
        size = self._unanswered_bytes + len(self._outgoing[0].message)
        if not self._unanswered or size <= limits.STAGE_UNANSWERED_BYTES_MAX:
            return True
        return not self._outgoing[0].is_answered  # or a service may wait for it, and answer nothing

    def _forget_unanswered(self) -> None:
        self._unanswered.clear()
        self._unanswered_bytes = 0

    def _takes_step(self) -> None:
        self._steps += 1

    async def _read(self, call: Any) -> None:
        while True:
            message = await call.read()
            if message is grpc.aio.EOF:
                return
            response = domain_pb2.ApplyResponse.FromString(message)
            if response.HasField("deferred"):
                self._events.deferred(response.deferred)
            elif response.HasField("attempt"):
                self.hear(response.attempt)
            elif response.HasField("replies"):
                for reply in response.replies.replies:
                    await self.decode_and_tell(reply)
            else:
                await self.decode_and_tell(response.batch)

    def hear(self, attempt: domain_pb2.Attempt) -> None:
        """Note an attempt before it is made, and confirm that before sending anything else."""
        self._poison.tries(attempt)
        if attempt.awaits_heard:
            self._outgoing.appendleft(OutgoingBatch(_HEARD, None, is_answered=False))
            self._wake.set()

    async def decode_and_tell(self, reply: domain_pb2.BatchReply) -> None:
        """Take the answer to the oldest unanswered batch, and tell the mux."""
        # Nothing is noted before all is decoded: if the stream ends, the next process answers.
        entry = self._unanswered[0].entry
        is_known = entry is not None and entry.outcome_digest is not None
        work = SlicedWork(as_it_came(reply) if is_known else self._events.decode(reply))
        own = TimeSlice()
        decoded = await work.finish()
        await own.give_way()  # its consequences take their own slice
        self._answered(reply, decoded)

    def _answered(self, reply: domain_pb2.BatchReply, decoded: Any) -> None:
        outgoing = self._unanswered.popleft()
        self._takes_step()
        self._unanswered_bytes -= len(outgoing.message)
        if self._outgoing:
            self._wake.set()
        self._replay_left = max(0, self._replay_left - 1)
        if not self._replay_left:
            self._steps_needed = 0
        if outgoing.entry is None:
            self._events.replied(decoded)
            return
        if reply.sequence != outgoing.entry.sequence:
            raise ReplayDivergedError(
                f"{self.target} answered batch {reply.sequence} where"
                f" {outgoing.entry.sequence} was due"
            )
        self._poison.answered(reply.sequence, needs_isolation=reply.needs_isolation)
        if settle(outgoing.entry, reply):
            self._events.replied(decoded)

    async def _watch_busyness(self) -> None:
        """Report a service that is long at one batch. It lives, so nothing else is done."""
        while True:
            await asyncio.sleep(LOOK_INTERVAL_MS / 1000)
            was_busy = self.is_busy
            self._busyness.look(
                self._steps,
                is_due=self._is_loading or bool(self._unanswered),
                now_ms=monotonic_ms(),
            )
            if self.is_busy:
                self._events.busy(self._busyness.owed_ms)
            elif was_busy:
                self._events.busy(0)

    def _gets_on(self) -> None:
        was_busy = self.is_busy
        self._busyness.reset()
        if was_busy:
            self._events.busy(0)


def cut_generation(batch: domain_pb2.Batch) -> int:
    """Return the generation of the cut in a batch, 0 if it holds none."""
    if len(batch.items) == 1 and batch.items[0].HasField("cut"):
        return batch.items[0].cut.generation
    return 0
