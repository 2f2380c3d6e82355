"""The way to one peer: connection, hello, packets of waiting messages; repeatedly.

A new connection is made for each attempt, so that only this file decides when to try again: after a
delay that doubles, with jitter, or at once when the peer has said hello to us. An idle stream
carries an empty packet from time to time, to show the other side that this process is alive.

A broken stream loses the messages under way, and waiting ones are given up with it. The protocol
repeats important messages; old ones would only mislead a peer that comes back.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from coordinator.base.clock import wall_clock_us
from coordinator.base.tasks import first_to_end
from coordinator.peers.hello import (
    DiskMark,
    Hello,
    HelloRefusal,
    RefusedHello,
    decode_hello,
    decode_verdict,
    encode_hello,
    judge_answer,
)
from coordinator.peers.known_disks import KnownDisks
from coordinator.peers.outbox import Outbox, OutgoingMessage
from coordinator.peers.status import LinkState, is_name_unknown
from coordinator.peers.tls import certificate_name, expiry_that_refuses
from viewstamp import grpc_transport
from viewstamp.api.replication.v1 import replication_service_pb2 as pb
from viewstamp.cancellation import end_if_cancelled
from viewstamp.certificates.pem_files import Certificates
from viewstamp.limits import MESSAGE_BYTES_MAX, PREPARE_BODY_BYTES_MAX
from viewstamp.telemetry import fields

EXCHANGE_PATH: Final = "/viewstamp.api.replication.v1.ReplicationService/Exchange"
HELLO_TIMEOUT_MS: Final = 2_000
# A lookup of the peer's name may take longer, for example if the first name server is dead. So each
# attempt that ran out of time is followed by one with twice as much.
HELLO_TIMEOUT_MAX_MS: Final = 16_000
SIGN_OF_LIFE_MS: Final = 500
RETRY_DELAY_MIN_MS: Final = 50
RETRY_DELAY_MAX_MS: Final = 2_000
KEEPALIVE_MS: Final = 2_000
KEEPALIVE_TIMEOUT_MS: Final = 2_000
# It must fit into a packet beside the largest body.
ENCODED_BYTES_MAX: Final = MESSAGE_BYTES_MAX - 2 * PREPARE_BODY_BYTES_MAX
CHANNEL_OPTIONS: Final = (
    ("grpc.max_send_message_length", MESSAGE_BYTES_MAX),
    ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
    # An address that says nothing has no part in that patience: its name may lead elsewhere by now.
    ("grpc.min_reconnect_backoff_ms", HELLO_TIMEOUT_MS),
    # Otherwise connections of equal options are shared, and with them the library's own backoff.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.keepalive_time_ms", KEEPALIVE_MS),
    ("grpc.keepalive_timeout_ms", KEEPALIVE_TIMEOUT_MS),
    # Without this the library still waits a minute for the answer to a ping.
    ("grpc.http2.ping_timeout_ms", KEEPALIVE_TIMEOUT_MS),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.enable_http_proxy", 0),
)

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LinkStatus:
    """The state of a link, and what keeps it from being connected."""

    state: LinkState
    why: str = ""
    refusal: HelloRefusal | None = None


def dial(address: str, replica: int, certificates: Certificates | None) -> grpc.aio.Channel:
    """Return a channel to a replica; with TLS the replica must prove its identity."""
    if certificates is None:
        return grpc_transport.open_channel(address, CHANNEL_OPTIONS)
    named = ("grpc.ssl_target_name_override", certificate_name(replica))
    return grpc_transport.open_channel(address, (*CHANNEL_OPTIONS, named), certificates.texts)


def retry_delay_ms(failures: int) -> int:
    """Return how long to wait after `failures` (at least 1) in a row; half of it is random."""
    longest = min(RETRY_DELAY_MAX_MS, RETRY_DELAY_MIN_MS << min(failures - 1, 16))
    return longest // 2 + random.randint(0, longest // 2)


class PeerLink:
    """The way to one peer. `run` maintains it until cancelled; `changed` is told of new states."""

    def __init__(
        self,
        hello: Hello,
        address: str,
        certificates: Certificates | None,
        changed: Callable[[], None],
        disk: Callable[[], DiskMark] = DiskMark,
        known_disks: KnownDisks | None = None,
        epoch: Callable[[], int] = lambda: 0,
    ) -> None:
        """Say `hello`, which names the peer, to `address`.

        `disk` tells how far the directory of this replica has come, `epoch` in which one it is; the
        peer's answer is judged by `known_disks`.
        """
        self.address = address
        self.standing = LinkStatus(LinkState.CONNECTING, "not tried yet")
        self.outbox = Outbox()
        self.sent = 0
        self.sent_packets = 0
        self.too_large = 0
        self._hello = hello
        self._disk = disk
        self._known_disks = known_disks or KnownDisks()
        self._epoch = epoch
        self._certificates = certificates
        self._changed = changed
        self._wake = asyncio.Event()
        self._is_life_due = False
        self.retry = asyncio.Event()
        self.failures = 0
        self.patience_ms = HELLO_TIMEOUT_MS
        self._known_boot = b""

    @property
    def connected(self) -> bool:
        """Whether a message sent now leaves now."""
        return self.standing.state is LinkState.CONNECTED

    def send(self, outgoing: OutgoingMessage) -> None:
        """Send, or keep the message for a later connection; a message given up is counted."""
        if len(outgoing.data) > ENCODED_BYTES_MAX:
            self.too_large += 1
            _log.error(
                "a message is too large for a packet and was dropped",
                extra=fields(kind=outgoing.kind.__name__, bytes=len(outgoing.data)),
            )
        elif self.connected:
            self.outbox.put(outgoing)
            self._wake.set()
        else:
            self.outbox.put_newest(outgoing)

    def heard_hello(self, boot_nonce: bytes) -> None:
        """Try again at once: the peer has said hello to us and is welcome.

        A peer that refuses us is tried at once only when it is a new process: otherwise two
        replicas of which one refuses could keep each other busy.
        """
        is_new = boot_nonce != self._known_boot
        self._known_boot = boot_nonce
        if is_new or self.standing.state is LinkState.CONNECTING:
            self.failures = 0
            self.retry.set()

    async def run(self) -> None:
        """Connect, send, and begin again, until cancelled."""
        while True:
            end_if_cancelled()
            self.retry.clear()
            standing = await self.attempt()
            if self.connected:  # until now
                self.outbox.clear()
            self._become(standing)
            self.failures += 1
            try:
                async with asyncio.timeout(retry_delay_ms(self.failures) / 1000):
                    await self.retry.wait()
            except TimeoutError:
                pass  # nobody called: try anyway

    async def attempt(self) -> LinkStatus:
        """Hold one stream as long as it lasts; return why it ended."""
        if not self.address:
            return LinkStatus(LinkState.CONNECTING, "nobody has told its address yet")
        channel = dial(self.address, self._hello.to_replica, self._certificates)
        try:
            call: Any = channel.stream_stream(EXCHANGE_PATH)()
            try:
                return await self._stream(call)
            finally:
                call.cancel()
        except grpc.RpcError as error:
            return self._failed(error)
        except TimeoutError:
            why = f"no hello within {self.patience_ms} ms"
            self.patience_ms = min(2 * self.patience_ms, HELLO_TIMEOUT_MAX_MS)
            return LinkStatus(LinkState.CONNECTING, why)
        except DecodeError as error:
            return LinkStatus(LinkState.CONNECTING, f"what answers is no replica: {error}")
        finally:
            await channel.close()

    def _failed(self, error: grpc.RpcError) -> LinkStatus:
        """Return what a broken stream or a failed handshake means."""
        why = f"{error.code().name}: {error.details()}"
        if self._certificates is None or self.connected:  # until now: it was accepted
            return LinkStatus(LinkState.CONNECTING, why)
        expired = expiry_that_refuses(
            error.details() or "", self._certificates.expiries, wall_clock_us()
        )
        if expired:
            refusal = HelloRefusal.EXPIRED_CERTIFICATE
            return LinkStatus(LinkState.REFUSED, f"{expired} ({why})", refusal)
        return LinkStatus(LinkState.CONNECTING, why)

    async def _stream(self, call: Any) -> LinkStatus:
        refusal = await self._say_hello(call)
        if refusal is not None:
            return LinkStatus(LinkState.REFUSED, refusal.detail, refusal.reason)
        self.failures = 0
        self.patience_ms = HELLO_TIMEOUT_MS
        self._become(LinkStatus(LinkState.CONNECTED))
        self._wake.set()  # something may have waited for this
        writer = asyncio.create_task(self._write(call))
        ticker = asyncio.create_task(self._show_life())
        reader = asyncio.create_task(_read_to_end(call))
        await first_to_end(reader, writer, ticker)
        await _read_to_end(call)  # raises the status that the stream ended with, if it failed
        return LinkStatus(LinkState.CONNECTING, "the peer closed the stream")

    async def _say_hello(self, call: Any) -> RefusedHello | None:
        request = pb.ExchangeRequest(
            hello=encode_hello(self._hello.on(self._disk(), self._epoch()))
        )
        async with asyncio.timeout(self.patience_ms / 1000):
            with contextlib.suppress(asyncio.InvalidStateError):  # it has ended: reading tells why
                await call.write(request.SerializeToString())
            answer = await call.read()
        if answer is grpc.aio.EOF:
            raise TimeoutError
        verdict = pb.ExchangeResponse.FromString(answer)
        return decode_verdict(verdict) or self._judge(decode_hello(verdict.hello))

    def _judge(self, answer: Hello) -> RefusedHello | None:
        """Return why this replica does not speak to the one that has accepted its hello."""
        return judge_answer(self._hello, answer) or self._known_disks.judge(answer)

    async def _write(self, call: Any) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self.outbox or self._is_life_due:
                self._is_life_due = False
                packet, count = self.outbox.packet()
                self.sent += count
                self.sent_packets += 1
                try:
                    await call.write(packet)
                except asyncio.InvalidStateError:
                    return  # the stream has ended since the last write

    async def _show_life(self) -> None:
        """Have an empty packet sent if there was no other for a while."""
        while True:
            seen = self.sent_packets
            await asyncio.sleep(SIGN_OF_LIFE_MS / 1000)
            if seen == self.sent_packets:
                self._is_life_due = True
                self._wake.set()

    def _become(self, standing: LinkStatus) -> None:
        """Record the link's state; log and report a new state, but not every new reason.

        A refusing peer's explanation is reported whenever it changes, because people need it. That
        a name is unknown is logged, because a process can wait for that from its start on.
        """
        before, self.standing = self.standing, standing
        is_new = (before.state, before.refusal) != (standing.state, standing.refusal)
        if is_new or is_name_unknown(before.why) != is_name_unknown(standing.why):
            self._log_standing()
        if is_new or (standing.state is LinkState.REFUSED and standing.why != before.why):
            self._changed()

    def _log_standing(self) -> None:
        standing = self.standing
        level = logging.INFO if standing.state is LinkState.CONNECTED else logging.WARNING
        _log.log(
            level,
            "link to peer changed",
            extra=fields(
                replica=self._hello.to_replica,
                address=self.address,
                state=standing.state.value,
                refusal=standing.refusal and standing.refusal.value,
                why=standing.why,
            ),
        )


async def _read_to_end(call: Any) -> None:
    """Wait for the end of the stream: after the verdict nothing comes. Raises grpc.RpcError."""
    while await call.read() is not grpc.aio.EOF:
        pass
