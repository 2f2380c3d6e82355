"""Messages in a stream of data: a flag, a length of four bytes, and the message.

This is "Length-Prefixed-Message" of gRPC's description of its protocol over HTTP/2.
"""

from __future__ import annotations

from struct import Struct
from typing import Final

import grpc

from viewstamp.limits import KIB

_PREFIX: Final = Struct(">BL")
PREFIX_BYTES: Final = _PREFIX.size
"""The largest message of an end that says nothing else, as in the reference implementation."""
WAITING_BYTES_MAX: Final = 64 * KIB
"""How much of a stream waits for the peer before whoever writes waits, too."""


class MalformedMessages(Exception):  # noqa: N818 - it is what the peer sent.
    """What came is no sequence of messages that we take; the code tells the peer why."""

    def __init__(self, code: grpc.StatusCode, details: str) -> None:
        super().__init__(details)
        self.code = code
        self.details = details


def prefixed(message: bytes) -> bytes:
    """Return a message as it is sent: not compressed."""
    return _PREFIX.pack(0, len(message)) + message


class MessageReader:
    """Cuts messages out of data; a message has at most `bytes_max`."""

    def __init__(self, end: str, bytes_max: int) -> None:
        self._end = end
        self._bytes_max = bytes_max
        self._part = bytearray()
        """What has come of a message that is not whole."""
        self._wanted = PREFIX_BYTES
        """How many the next message has, with its prefix, as far as that is known."""

    @property
    def size(self) -> int:
        """How many bytes of a message that is not whole have come."""
        return len(self._part)

    def read(self, data: bytes) -> list[bytes]:
        """Return the messages that are whole now, in order. Raises MalformedMessages."""
        if self._part:
            self._part += data
            if len(self._part) < self._wanted:
                return []
            data = bytes(self._part)
        return self._cut(data)

    def _cut(self, data: bytes) -> list[bytes]:
        messages: list[bytes] = []
        at = 0
        self._wanted = PREFIX_BYTES
        while len(data) - at >= PREFIX_BYTES:
            flag, size = _PREFIX.unpack_from(data, at)
            self._check(flag, size)
            begin, end = at + PREFIX_BYTES, at + PREFIX_BYTES + size
            if end > len(data):
                self._wanted = PREFIX_BYTES + size
                break
            messages.append(data[begin:end])
            at = end
        self._part = bytearray(data[at:])
        return messages

    def _check(self, flag: int, size: int) -> None:
        if flag:
            text = "the message is compressed, and no compression was offered"
            raise MalformedMessages(grpc.StatusCode.INTERNAL, text)
        if size > self._bytes_max:
            # In the words of the reference implementation, which callers may know.
            text = f"{self._end}: Received message larger than max ({size} vs. {self._bytes_max})"
            raise MalformedMessages(grpc.StatusCode.RESOURCE_EXHAUSTED, text)
