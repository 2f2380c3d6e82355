"""Two processes with the number of one replica say their hello in the same moment."""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import grpc.aio

from coordinator.peers.hello import WIRE_VERSION, Hello, HelloRefusal, encode_hello
from coordinator.peers.link import EXCHANGE_PATH
from coordinator.peers.listener import Listener
from viewstamp.api.replication.v1 import replication_service_pb2 as pb

# More turns of the loop than both hellos need to be judged.
TURNS = 20
OWN = Hello(b"c" * 16, WIRE_VERSION, 0, 3, b"d" * 32, b"n" * 16, 1)


@dataclass
class FakePeerEvents:
    """Who was welcomed and whose last stream ended, in order."""

    told: list[str] = field(default_factory=list)
    handlers: dict[type, Any] = field(default_factory=dict)

    def welcomed(self, replica: int, boot_nonce: bytes) -> None:
        self.told.append(f"welcomed {replica}")

    def has_place(self, hello: Hello) -> bool:
        return hello.replica_id < OWN.replica_count

    def fell_silent(self, replica: int) -> None:
        self.told.append(f"fell silent {replica}")

    def failed(self, error: BaseException) -> None:
        raise error


class FakePeerContext:
    """A caller's stream: its hello, then silence. Its verdict leaves once `may_write` is set."""

    def __init__(self, may_write: asyncio.Event) -> None:
        self.verdicts: list[pb.ExchangeResponse] = []
        self._may_write = may_write
        hello = encode_hello(Hello(b"c" * 16, WIRE_VERSION, 1, 3, b"d" * 32, os.urandom(16), 0))
        self._packets = [pb.ExchangeRequest(hello=hello).SerializeToString()]

    def peer(self) -> str:
        return "ipv4:127.0.0.1:1"

    async def read(self) -> Any:
        return self._packets.pop(0) if self._packets else grpc.aio.EOF

    async def write(self, verdict: pb.ExchangeResponse) -> None:
        await self._may_write.wait()
        self.verdicts.append(verdict)


async def test_one_of_two_processes_is_welcome() -> None:
    """A process is refused although the verdict for the first one is still on its way."""
    events, may_write = FakePeerEvents(), asyncio.Event()
    listener = Listener(OWN, events, lambda: 0, certificate_names=lambda _: None)
    handler: Any = listener.handlers().service(SimpleNamespace(method=EXCHANGE_PATH))
    callers = [FakePeerContext(may_write), FakePeerContext(may_write)]
    async with asyncio.TaskGroup() as tasks:
        for caller in callers:
            tasks.create_task(handler.stream_stream(None, caller))
        for _ in range(TURNS):
            await asyncio.sleep(0)
        may_write.set()
    assert [verdict.refusal for caller in callers for verdict in caller.verdicts] == [
        pb.HELLO_REFUSAL_UNSPECIFIED,
        pb.HELLO_REFUSAL_DUPLICATE_REPLICA,
    ]
    assert listener.refused == {HelloRefusal.DUPLICATE_REPLICA.value: 1}
    assert events.told == ["welcomed 1", "fell silent 1"]
