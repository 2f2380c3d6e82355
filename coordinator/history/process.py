"""The process of the past as its coordinator sees it: started on demand, asked, ended.

It is asked one thing at a time. It holds nothing that cannot be built again, so it is ended at any
moment, also in the midst of an answer that nobody wants any more.
"""

from __future__ import annotations

import asyncio
import logging
import pickle
import socket
import subprocess
import sys
from threading import Thread
from typing import Any, Final, Protocol

from coordinator.history.messages import PastAnswer, PastMessage
from viewstamp.past_limits import PAST_ANSWER_TIMEOUT_MS
from viewstamp.telemetry import fields

MODULE: Final = "past"
# Before each message: its length, in network byte order.
LENGTH_BYTES: Final = 8

_log = logging.getLogger(__name__)


class PastEndedError(Exception):
    """The process cannot be started, or has ended; the message says what to look for."""


class PastLink(Protocol):
    """The way to a process of the past."""

    async def ask(self, message: PastMessage) -> PastAnswer:
        """Return the answer to a message. Raises PastEndedError."""
        ...

    def end(self) -> None:
        """End the process at once, whatever it does."""
        ...


class PastLauncher(Protocol):
    """Starts a process of the past."""

    async def __call__(self) -> PastLink:
        """Return the way to a new process. Raises PastEndedError."""
        ...


class PastProcess:
    """A child of this process."""

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        """Use `start_past`."""
        self._process = process
        self._reader = reader
        self._writer = writer

    async def ask(self, message: PastMessage) -> PastAnswer:
        """Return the answer to a message. Raises PastEndedError.

        Whoever stops waiting must end the process: the next answer would be to this message.
        """
        try:
            async with asyncio.timeout(PAST_ANSWER_TIMEOUT_MS / 1000):
                self._writer.write(encode_message(message))
                await self._writer.drain()
                length = int.from_bytes(await self._reader.readexactly(LENGTH_BYTES))
                answer: PastAnswer = pickle.loads(await self._reader.readexactly(length))
        except TimeoutError as late:
            raise PastEndedError(
                "the process that builds earlier states gave no answer within"
                f" {PAST_ANSWER_TIMEOUT_MS} ms, and was ended"
            ) from late
        except (asyncio.IncompleteReadError, OSError) as lost:
            raise PastEndedError(
                "the process that builds earlier states has ended: see the log of the coordinator,"
                " and whether memory ran out, since it needs as much as all services together"
            ) from lost
        return answer

    def end(self) -> None:
        """Kill the process; nothing is lost with it, and nobody waits until it is gone."""
        self._writer.close()
        self._process.kill()
        Thread(target=self._process.wait, daemon=True).start()
        _log.info("process of the past ended", extra=fields(process=self._process.pid))


def encode_message(message: Any) -> bytes:
    """Return a message as it travels."""
    data = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
    return len(data).to_bytes(LENGTH_BYTES) + data


async def start_past() -> PastLink:
    """Start the process. Raises PastEndedError."""
    ours, theirs = socket.socketpair()
    with theirs:
        command = [sys.executable, "-m", MODULE, str(theirs.fileno())]
        try:
            process = await asyncio.to_thread(
                subprocess.Popen,
                command,
                stdin=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
            )
        except OSError as error:
            ours.close()
            raise PastEndedError(
                f"the process that builds earlier states cannot be started: {error}"
            ) from error
    reader, writer = await asyncio.open_connection(sock=ours)
    _log.info("process of the past started", extra=fields(process=process.pid))
    return PastProcess(process, reader, writer)
