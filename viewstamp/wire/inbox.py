"""The messages of one stream that nobody has read yet, and those who wait for something."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

import grpc

from viewstamp.wire.messages import PREFIX_BYTES, MalformedMessages, MessageReader

# How many of the largest messages one connection may have here, whole or in part.
_LARGEST_HELD_MAX: Final = 4


class HeldBytes:
    """How much of all streams of a connection is held for readers, and how much may be."""

    def __init__(self, message_bytes_max: int) -> None:
        self._left = _LARGEST_HELD_MAX * message_bytes_max

    def hold(self, size: int) -> None:
        """Take note of bytes that came, or of fewer. Raises MalformedMessages."""
        self._left -= size
        if size > 0 and self._left < 0:
            text = "too many bytes of this connection wait for their readers"
            raise MalformedMessages(grpc.StatusCode.RESOURCE_EXHAUSTED, text)


class Inbox:
    """Messages in order. Their bytes are given back to the peer as they are read.

    A whole message counts until somebody reads it. A part of one must not count: the rest might
    never fit into the window of its stream.
    """

    def __init__(
        self, end: str, bytes_max: int, give_back: Callable[[int], None], held: HeldBytes
    ) -> None:
        """Take messages of so many bytes; `give_back` allows the peer to send more.

        `end` is the word for this end in errors.
        """
        self._reader = MessageReader(end, bytes_max)
        self._held = held
        self._held_bytes = 0
        self._give_back = give_back
        self._messages: deque[tuple[bytes, int]] = deque()
        """Each with the bytes that are given back for it."""

    def __len__(self) -> int:
        """Return how many messages are whole."""
        return len(self._messages)

    @property
    def is_within_one(self) -> bool:
        """Whether a part of another message has come."""
        return self._reader.size > 0

    def take(self, data: bytes) -> bool:
        """Take data; return whether messages became whole. Raises MalformedMessages."""
        left, before = len(data), self._reader.size
        messages = None
        try:
            self._hold(left)
            messages = self._reader.read(data)
        finally:
            if messages is None:
                self._return(left)
        for message in messages:
            owed = PREFIX_BYTES + len(message) - before
            self._messages.append((message, owed))
            left, before = left - owed, 0
        self._return(left)
        return bool(messages)

    def read(self) -> bytes:
        """Return the first message; there must be one."""
        message, owed = self._messages.popleft()
        self._hold(-min(self._held_bytes, PREFIX_BYTES + len(message)))
        self._return(owed)
        return message

    def release(self) -> None:
        """Give back what is owed for all messages; they can still be read, and count no more.

        Take no more data afterwards. Whoever gives back is let go, or a call and its inbox would
        refer to each other until the garbage is collected.
        """
        self._hold(-self._held_bytes)
        owed = sum(owed for _, owed in self._messages)
        self._messages = deque([(message, 0) for message, _ in self._messages])
        self._return(owed)
        self._give_back = _give_nothing

    def _hold(self, size: int) -> None:
        self._held_bytes += size
        self._held.hold(size)

    def _return(self, size: int) -> None:
        if size:
            self._give_back(size)


def _give_nothing(_: int) -> None:
    raise AssertionError("data were taken after the end")


class Bell:
    """Wakes all who wait for a change; each looks for itself whether it is the right one."""

    def __init__(self) -> None:
        self._waiting: list[asyncio.Future[None]] = []

    def ring(self) -> None:
        """Wake all."""
        waiting, self._waiting = self._waiting, []
        for future in waiting:
            if not future.done():
                future.set_result(None)

    async def wait(self) -> None:
        """Wait until it rings."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        try:
            await future
        except asyncio.CancelledError:
            if future in self._waiting:
                self._waiting.remove(future)  # or those who give up would stay until it rings
            raise
