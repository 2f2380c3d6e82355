"""How the programs of this example talk: one connection for a request, one line of JSON each way.

A real platform has a binary protocol, keeps its connections, and authenticates who calls.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeAlias

# A document: what is asked, or the answer. An answer with "refused" says why not.
Document: TypeAlias = dict[str, Any]
HOST: Final = "127.0.0.1"
ANSWER_TIMEOUT_S: Final = 5.0
LINE_BYTES_MAX: Final = 1 << 20


class Refused(Exception):  # noqa: N818 - reads as the sentence it is
    """The program that was asked does not do it; the message says why."""


async def serve(answer: Callable[[Document], Awaitable[Document]]) -> int:
    """Answer requests for ever, at a free port; return the port."""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            request = json.loads(await reader.readline())
            try:
                answered = await answer(request)
            except Refused as refused:
                answered = {"refused": str(refused)}
            writer.write(json.dumps(answered).encode() + b"\n")
            await writer.drain()
        except (OSError, ValueError, asyncio.CancelledError):
            pass  # the caller has gone or sent no request, or this process ends
        finally:
            writer.close()

    server = await asyncio.start_server(talk, HOST, 0, limit=LINE_BYTES_MAX)
    port: int = server.sockets[0].getsockname()[1]
    return port


async def ask(host: str, port: int, request: Document) -> Document:
    """Return the answer to a request. Raises Refused, OSError, TimeoutError."""
    async with asyncio.timeout(ANSWER_TIMEOUT_S):
        reader, writer = await asyncio.open_connection(host, port, limit=LINE_BYTES_MAX)
        try:
            writer.write(json.dumps(request).encode() + b"\n")
            line = await reader.readline()
        finally:
            writer.close()
    if not line:
        raise ConnectionError(f"{host}:{port} closed the connection without an answer")
    answer: Document = json.loads(line)
    if "refused" in answer:
        raise Refused(answer["refused"])
    return answer


def tell(**said: object) -> None:
    """Print a line of JSON for the program that started this one."""
    print(json.dumps(said), flush=True)
