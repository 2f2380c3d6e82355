"""What peers say to this replica: their streams, each begun by a hello, on their own address.

Each peer has one live stream. A newer stream of the same process ends the older; one of *another*
process with the same id is refused as long as the first shows signs of life, and later ends it.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from coordinator.base.roster import Roster
from coordinator.base.tasks import first_to_end
from coordinator.peers.codec import Undecodable, decode_packet
from coordinator.peers.hello import (
    DiskMark,
    Hello,
    HelloRefusal,
    RefusedHello,
    decode_hello,
    encode_verdict,
    judge,
    judge_member,
)
from coordinator.peers.known_disks import KnownDisks
from coordinator.peers.link import HELLO_TIMEOUT_MS, KEEPALIVE_MS, KEEPALIVE_TIMEOUT_MS
from coordinator.peers.routing import Handler
from coordinator.peers.tls import certificate_name
from viewstamp.api.replication.v1 import replication_service_pb2 as pb
from viewstamp.certificates.proven_names import names_of
from viewstamp.limits import MESSAGE_BYTES_MAX, STREAMS_PER_CONNECTION_MAX
from viewstamp.telemetry import fields

SERVICE: Final = "viewstamp.api.replication.v1.ReplicationService"
# Signs of life come four times as often.
DUPLICATE_SILENCE_MS: Final = 2_000
SERVER_OPTIONS: Final = (
    ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
    ("grpc.max_send_message_length", MESSAGE_BYTES_MAX),
    ("grpc.max_concurrent_streams", STREAMS_PER_CONNECTION_MAX),
    ("grpc.so_reuseport", 0),
    ("grpc.keepalive_time_ms", KEEPALIVE_MS),
    ("grpc.keepalive_timeout_ms", KEEPALIVE_TIMEOUT_MS),
    ("grpc.http2.ping_timeout_ms", KEEPALIVE_TIMEOUT_MS),
    ("grpc.http2.max_pings_without_data", 0),
    # Peers send pings this often.
    ("grpc.http2.min_ping_interval_without_data_ms", KEEPALIVE_MS // 2),
)

_log = logging.getLogger(__name__)
_Context = grpc.aio.ServicerContext[Any, Any]


class ListenerEvents(Protocol):
    """What the listener tells its owner, on the event loop."""

    def welcomed(self, replica: int, boot_nonce: bytes) -> None:
        """A peer has said hello and was accepted."""
        ...

    def has_place(self, hello: Hello) -> bool:
        """Return whether a peer is a member, or a guest of a later epoch for whom there is room."""
        ...

    @property
    def handlers(self) -> Mapping[type, Handler]:
        """Return who takes which message; an exception of theirs ends the process."""
        ...

    def fell_silent(self, replica: int) -> None:
        """The stream of a peer ended, and no newer one took its place."""
        ...

    def failed(self, error: BaseException) -> None:
        """Report a defect after which continuing would be wrong."""
        ...


@dataclass(slots=True, eq=False)
class _Stream:
    """A live stream of a peer; `replaced` ends it."""

    boot_nonce: bytes
    replaced: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass(slots=True)
class Heard:
    """What was heard from one peer, over all its streams. `last_ms` is on the clock given."""

    stream: _Stream | None = None
    last_ms: int | None = None
    received: int = 0
    undecodable: Counter[str] = field(default_factory=Counter)
    refused_hello: str = ""


class Listener:
    """The receiving side. `own` is the hello that this replica says, to anybody."""

    def __init__(
        self,
        own: Hello,
        events: ListenerEvents,
        clock_ms: Callable[[], int],
        certificate_names: Callable[[_Context], frozenset[str] | None] = names_of,
        mends: Callable[[], str] = lambda: "",
        level_in_force: Callable[[], int] = lambda: 0,
        disk: Callable[[], DiskMark] = DiskMark,
        known_disks: KnownDisks | None = None,
        roster: Roster | None = None,
        introduce: Callable[[bytes, _Context], Awaitable[bytes]] | None = None,
    ) -> None:
        """`mends` says what this replica has to do before it can exchange messages, or is empty.

        `disk` tells how far the directory of this replica has come. Without `roster` the members
        are those that founded the cluster. `introduce` answers newcomers; without it nobody does.
        """
        counts = (own.replica_count, own.standby_count)
        self._roster = roster or Roster.founding(own.replica_id, *counts)
        self.heard: dict[int, Heard] = {}
        self._follow_roster()
        self._roster.follow(self._follow_roster)
        self.refused: Counter[str] = Counter()
        """Refused hellos, by reason."""
        self._own = own
        self._events = events
        self._clock_ms = clock_ms
        self._certificate_names = certificate_names
        self._mends = mends
        self._level_in_force = level_in_force
        self._disk = disk
        self._known_disks = known_disks or KnownDisks()
        self._introduce = introduce

    def _follow_roster(self) -> None:
        """Listen to new members, and end the streams of those that are no members any more."""
        known = (*self._roster.others, *self._roster.former)
        for replica in self.heard.keys() - set(known):  # the guests are heard as members, or go
            stream = self.heard.pop(replica).stream
            if stream is not None:
                stream.replaced.set()
        for replica in known:
            self.heard.setdefault(replica, Heard())

    def handlers(self) -> grpc.GenericRpcHandler:
        """Return what serves the streams. Packets stay bytes until they are judged here."""

        async def exchange(_: Any, context: _Context) -> None:
            await self._exchange(context)

        handler: Any = exchange
        methods: dict[str, Any] = {
            "Exchange": grpc.stream_stream_rpc_method_handler(
                handler, response_serializer=pb.ExchangeResponse.SerializeToString
            )
        }
        if self._introduce is not None:
            introduce: Any = self._introduce
            methods["Introduce"] = grpc.unary_unary_rpc_method_handler(introduce)
        return grpc.method_handlers_generic_handler(SERVICE, methods)

    def refusal_of(self, message: pb.ReplicaHello, context: _Context) -> RefusedHello | None:
        """Return why a caller is refused, None if it is welcome; log and count refusals.

        It does not check whether the caller already has a stream; `_admit` does.
        """
        hello = decode_hello(message)
        own = self._own.on(self._own.disk, self._roster.epoch)
        refusal = (
            judge(own, hello, self._level_in_force())
            or judge_member(self._roster, hello)
            or _check_certificate(hello.replica_id, self._certificate_names(context))
        )
        if refusal is not None:
            self._refused(hello, refusal, context)
        return refusal

    # --- A stream's life ---

    async def _exchange(self, context: _Context) -> None:
        hello = await _first(context)
        refusal = (
            self.refusal_of(hello, context)
            or self._check_place(hello, context)
            or self._check_mended(hello, context)
            or self._check_duplicate(hello, context)
            or self._check_disk(hello, context)
        )
        own = self._own.to(hello.replica_id).on(self._disk(), self._roster.epoch)
        verdict = encode_verdict(own, refusal)
        if refusal is None:
            await self._serve(hello.replica_id, hello.boot_nonce, context, verdict)
        else:
            await context.write(verdict)

    async def _serve(
        self, replica: int, boot_nonce: bytes, context: _Context, verdict: pb.ExchangeResponse
    ) -> None:
        heard = self.heard[replica]
        # The stream takes its place before it waits: another process with the same number could
        # say its hello meanwhile, and both would be welcome.
        if heard.stream is not None:
            heard.stream.replaced.set()
        stream = heard.stream = _Stream(boot_nonce)
        heard.refused_hello = ""
        heard.last_ms = self._clock_ms()
        try:
            await context.write(verdict)
            self._events.welcomed(replica, boot_nonce)
            reader = asyncio.create_task(self._read(replica, heard, stream, context))
            replaced = asyncio.create_task(_wait_for(stream.replaced))
            await first_to_end(reader, replaced)
        finally:
            if heard.stream is stream:
                heard.stream = None
                if replica in self.heard:
                    self._events.fell_silent(replica)

    async def _read(self, replica: int, heard: Heard, stream: _Stream, context: _Context) -> None:
        while True:
            packet = await context.read()
            if packet is grpc.aio.EOF or stream.replaced.is_set():
                return
            heard.last_ms = self._clock_ms()
            self.take(replica, heard, packet)

    def take(self, replica: int, heard: Heard, packet: bytes) -> None:
        """Hand every message of a packet to its handler; count those that cannot be decoded."""
        for found in decode_packet(packet, self._own.cluster_id, replica):
            if isinstance(found, Undecodable):
                self._dropped(replica, heard, found)
                continue
            heard.received += 1
            try:
                self._events.handlers[type(found)](found)
            except Exception as error:
                # gRPC would log it and continue; a defect of the core must end the process.
                self._events.failed(error)
                raise

    def _dropped(self, replica: int, heard: Heard, found: Undecodable) -> None:
        heard.undecodable[found.rule.value] += 1
        if heard.undecodable[found.rule.value] == 1:
            _log.warning(
                "a peer's message was dropped; further ones of this rule are only counted",
                extra=fields(replica=replica, rule=found.rule.value, detail=found.detail),
            )

    # --- Refusals ---

    def _check_mended(self, hello: pb.ReplicaHello, context: _Context) -> RefusedHello | None:
        detail = self._mends()
        if not detail:
            return None
        refusal = RefusedHello(HelloRefusal.MENDING, detail)
        self._refused(decode_hello(hello), refusal, context)
        return refusal

    def _check_place(self, message: pb.ReplicaHello, context: _Context) -> RefusedHello | None:
        """Have a guest of a later epoch heard, if there is room."""
        hello = decode_hello(message)
        if self._events.has_place(hello):
            self.heard.setdefault(hello.replica_id, Heard())
            return None
        refusal = RefusedHello(
            HelloRefusal.UNKNOWN_REPLICA,
            f"replica {hello.replica_id} is of epoch {hello.epoch}; this one is still in"
            f" {self._roster.epoch}, and hears enough others that can tell it of later ones",
        )
        self._refused(hello, refusal, context)
        return refusal

    def _check_duplicate(self, hello: pb.ReplicaHello, context: _Context) -> RefusedHello | None:
        heard = self.heard[hello.replica_id]
        if heard.stream is None or heard.stream.boot_nonce == hello.boot_nonce:
            return None
        silent_ms = self._clock_ms() - (heard.last_ms or 0)
        if silent_ms >= DUPLICATE_SILENCE_MS:
            return None
        refusal = RefusedHello(
            HelloRefusal.DUPLICATE_REPLICA,
            f"another process is connected as replica {hello.replica_id}, and was heard"
            f" {silent_ms} ms ago: two processes have the same --replica-id",
        )
        self._refused(decode_hello(hello), refusal, context)
        return refusal

    def _check_disk(self, hello: pb.ReplicaHello, context: _Context) -> RefusedHello | None:
        """Last, because whoever is welcome is remembered."""
        refusal = self._known_disks.judge(decode_hello(hello))
        if refusal is not None:
            self._refused(decode_hello(hello), refusal, context)
        return refusal

    def _refused(self, hello: Hello, refusal: RefusedHello, context: _Context) -> None:
        self.refused[refusal.reason.value] += 1
        heard = self.heard.get(hello.replica_id)
        # Callers try again and again: log one line for each new reason.
        if heard is None:
            is_new = self.refused[refusal.reason.value] == 1
        else:
            is_new = heard.refused_hello != refusal.reason.value
            heard.refused_hello = refusal.reason.value
        if is_new:
            _log.warning(
                "a hello was refused",
                extra=fields(
                    replica=hello.replica_id,
                    caller=context.peer(),
                    reason=refusal.reason.value,
                    detail=refusal.detail,
                ),
            )


def _check_certificate(replica: int, names: frozenset[str] | None) -> RefusedHello | None:
    """Return a refusal unless the certificate, if one is required, is that replica's."""
    due = certificate_name(replica)
    if names is None or due in names:
        return None
    found = ", ".join(sorted(names)) or "no name"
    return RefusedHello(
        HelloRefusal.WRONG_CERTIFICATE,
        f"the certificate of replica {replica} must name {due}; this one has {found}",
    )


async def _first(context: _Context) -> pb.ReplicaHello:
    """Return the hello that a stream begins with; an empty one, to be refused, if it has none."""
    try:
        async with asyncio.timeout(HELLO_TIMEOUT_MS / 1000):
            packet = await context.read()
        if packet is grpc.aio.EOF:
            return pb.ReplicaHello()
        return pb.ExchangeRequest.FromString(packet).hello
    except (TimeoutError, DecodeError):
        return pb.ReplicaHello()


async def _wait_for(event: asyncio.Event) -> None:
    await event.wait()
