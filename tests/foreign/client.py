"""`python -m tests.foreign.client TRANSPORT ADDRESS [AUTHORITY CERTIFICATE KEY]`: our own client.

It holds conversations with a server as the clients in other languages do: a table on standard
input, outcomes on standard output, a JSON document on each line.
"""

from __future__ import annotations

import asyncio
import json
import sys
from base64 import b64decode, b64encode
from collections.abc import AsyncIterator, Iterable
from dataclasses import asdict, dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

import grpc
import grpc.aio

from tests.foreign.server import OPTIONS
from tests.viewstamp.wire.echo import DETAILS_KEY, SERVICE
from tests.viewstamp.wire.tls_ends import NAMED
from viewstamp import event_loop, grpc_transport, transports
from viewstamp.grpc_transport import TlsTexts

PATIENCE_S: Final = 20
CANCEL_DELAY_S: Final = 0.1
MS_PER_S: Final = 1_000
REPEAT: Final = "REPEAT "
TOLD: Final = ("initial", "initial-bin", "trailing", "plain", DETAILS_KEY)
# The server is to find what is too large, as those in other languages do.
UNSENT: Final = ("grpc.max_send_message_length",)
MAKERS: Final = {
    "unary": "unary_unary",
    "server": "unary_stream",
    "client": "stream_unary",
    "bidi": "stream_stream",
}


@dataclass(frozen=True, slots=True)
class ConversationRow:
    """One row of the table."""

    name: str
    kind: str
    path: str
    text: str = ""
    size: int = 0
    count: int = 0
    turns: bool = False
    metadata: dict[str, str] = field(default_factory=dict)
    deadline_ms: int = PATIENCE_S * MS_PER_S
    cancel_after: int | None = None
    parallel: int = 1
    gzip: bool = False
    pause_ms: int = 0

    @property
    def message(self) -> bytes:
        """What is sent, once or again and again."""
        if self.size == 0:
            return self.text.encode()
        return (bytes(range(256)) * (self.size // 256 + 1))[: self.size]

    @property
    def sent_metadata(self) -> list[tuple[str, str | bytes]]:
        """What is sent before it."""
        return [(key, _value(key, value)) for key, value in self.metadata.items()]


def _value(key: str, value: str) -> str | bytes:
    if key.endswith("-bin"):
        return b64decode(value)
    return "v" * int(value.removeprefix(REPEAT)) if value.startswith(REPEAT) else value


@dataclass(slots=True)
class ConversationOutcome:
    """What a call came to."""

    code: int = 0
    details: str = ""
    messages: int = 0
    digest: str = ""
    initial: dict[str, str] = field(default_factory=dict)
    trailing: dict[str, str] = field(default_factory=dict)


class ConversationTrial:
    """One call: what it sends, and what has come."""

    def __init__(self, channel: Any, talk: ConversationRow) -> None:
        self._talk = talk
        self._digest = sha256()
        self._outcome = ConversationOutcome()
        self._method = getattr(channel, MAKERS[talk.kind])(f"/{SERVICE}/{talk.path}")
        self._turn = asyncio.Semaphore(1)

    async def hold(self) -> ConversationOutcome:
        """Hold the conversation, and return what it came to."""
        talk, outcome = self._talk, self._outcome
        sends_one = talk.kind in ("unary", "server")
        call = self._method(
            talk.message if sends_one else self._requests(),
            timeout=talk.deadline_ms / MS_PER_S,
            metadata=talk.sent_metadata,
            compression=grpc.Compression.Gzip if talk.gzip else None,
        )
        if talk.cancel_after == 0:
            asyncio.get_running_loop().call_later(CANCEL_DELAY_S, call.cancel)
        await self._read(call)
        outcome.code = (await call.code()).value[0]
        outcome.details = await call.details() or ""
        outcome.initial = _told(await call.initial_metadata())
        outcome.trailing = _told(await call.trailing_metadata())
        outcome.digest = self._digest.hexdigest()
        return outcome

    async def _requests(self) -> AsyncIterator[bytes]:
        for _ in range(self._talk.count):
            if self._talk.turns:
                await self._turn.acquire()
            yield self._talk.message

    async def _read(self, call: Any) -> None:
        try:
            if self._talk.kind in ("unary", "client"):
                self._take(await call)
                return
            async for message in call:
                self._take(message)
                self._turn.release()
                await asyncio.sleep(self._talk.pause_ms / MS_PER_S)
                if self._outcome.messages == self._talk.cancel_after:
                    call.cancel()
        except (grpc.aio.AioRpcError, asyncio.CancelledError):
            pass  # the call tells what it was

    def _take(self, message: bytes) -> None:
        self._outcome.messages += 1
        self._digest.update(len(message).to_bytes(4, "big") + message)


def _told(metadata: Iterable[tuple[str, str | bytes]] | None) -> dict[str, str]:
    return {
        key: b64encode(value).decode() if isinstance(value, bytes) else value
        for key, value in metadata or ()
        if key in TOLD
    }


async def converse(address: str, files: list[str]) -> None:
    """Hold all conversations of the input."""
    texts = TlsTexts(*(Path(file).read_bytes() for file in files)) if files else None
    options = tuple(option for option in OPTIONS if option[0] not in UNSENT)
    channel = grpc_transport.open_channel(address, (*options, *NAMED), texts)
    for line in sys.stdin:
        talk = ConversationRow(**json.loads(line))
        trials = [ConversationTrial(channel, talk) for _ in range(talk.parallel)]
        outcomes = await asyncio.gather(*(trial.hold() for trial in trials))
        print(json.dumps({"name": talk.name, "outcomes": list(map(asdict, outcomes))}), flush=True)
    await channel.close()


def main(transport: str, address: str, *files: str) -> None:
    """Converse on a transport."""
    transports.use(transport)
    event_loop.run(converse(address, list(files)))


if __name__ == "__main__":
    main(*sys.argv[1:])
