"""One connection: requests are read from it and answers written to it, by h11, within bounds."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from email.utils import formatdate
from http import HTTPStatus
from typing import Final
from urllib.parse import parse_qsl

import h11

from coordinator.console.bounds import (
    BODY_BYTES_MAX,
    HEAD_BYTES_MAX,
    LINGER_BYTES_MAX,
    LINGER_MS,
    READING_TIMEOUT_MS,
    REQUEST_TIMEOUT_MS,
    TARGET_CHARACTERS_MAX,
    UNREAD_BYTES_MAX,
)
from coordinator.console.http_messages import (
    EVENTS_TYPE,
    SECURITY_HEADERS,
    HttpAnswer,
    HttpRefused,
    HttpRequest,
)
from viewstamp.limits import KIB

READ_BYTES: Final = 16 * KIB
_VERSIONS: Final = frozenset({b"1.0", b"1.1"})
_QUERY_FIELDS_MAX: Final = 16
_DOUBTFUL: Final = frozenset({"cookie", "host", "origin", "content-type", "sec-fetch-site"})


class HttpExchange:
    """The requests of one client, one after another."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, peer: str
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._peer = peer
        self._wants_body = True
        self._is_last = False
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=HEAD_BYTES_MAX)
        writer.transport.set_write_buffer_limits(high=UNREAD_BYTES_MAX)

    async def next_request(self) -> HttpRequest | None:
        """Return the next request; None if the client has gone, or says nothing.

        Raises HttpRefused for one that is too large, too slow, or not HTTP; it is the last one.
        """
        self._is_last = True
        try:
            async with asyncio.timeout(REQUEST_TIMEOUT_MS / 1000):
                request = await self._whole_request()
            self._is_last = False
            return request
        except TimeoutError as error:
            if self._http.their_state is h11.IDLE and not self._http.trailing_data[0]:
                return None
            raise HttpRefused(
                HTTPStatus.REQUEST_TIMEOUT, f"send a request within {REQUEST_TIMEOUT_MS} ms"
            ) from error
        except h11.RemoteProtocolError as error:
            status = HTTPStatus(error.error_status_hint)
            raise HttpRefused(status, f"this is no request of HTTP/1.1: {error}") from error

    async def answer(self, answer: HttpAnswer) -> bool:
        """Write an answer; return whether the connection goes on. Raises TimeoutError, OSError."""
        length = {"Content-Type": answer.content_type, "Content-Length": str(len(answer.body))}
        closing = {"Connection": "close"} if self._is_last else {}
        data = self._head(answer.status, {**length, **answer.headers, **closing})
        if answer.body and self._wants_body:
            data += self._sent(h11.Data(data=answer.body))
        await self._write(data + self._sent(h11.EndOfMessage()))
        if self._http.our_state is h11.DONE and self._http.their_state is h11.DONE:
            self._http.start_next_cycle()
            return True
        await self._linger()
        return False

    async def begin_events(self) -> None:
        """Begin an answer of many parts. Raises TimeoutError, OSError."""
        await self._write(self._head(HTTPStatus.OK, {"Content-Type": EVENTS_TYPE}))

    async def write_events(self, text: str) -> None:
        """Write a part. Raises TimeoutError if the client does not read, OSError if it has gone."""
        await self._write(self._sent(h11.Data(data=text.encode())))

    async def end_events(self) -> None:
        """Say that the answer is whole. Raises TimeoutError, OSError."""
        await self._write(self._sent(h11.EndOfMessage()))

    async def gone(self) -> None:
        """Wait until the client has gone, or says something, which it must not during events."""
        with suppress(OSError):
            await self._reader.read(1)

    # --- Bytes ---

    async def _whole_request(self) -> HttpRequest | None:
        head = await self._next_event()
        if not isinstance(head, h11.Request):
            return None
        if head.http_version not in _VERSIONS:
            raise HttpRefused(HTTPStatus.HTTP_VERSION_NOT_SUPPORTED, "speak HTTP/1.1")
        self._wants_body = head.method != b"HEAD"
        body = b""
        while not isinstance(event := await self._next_event(), h11.EndOfMessage):
            if not isinstance(event, h11.Data):
                return None
            body += event.data
            if len(body) > BODY_BYTES_MAX:
                raise HttpRefused(
                    HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"send at most {BODY_BYTES_MAX} bytes"
                )
        return _request_of(head, body, self._peer)

    async def _next_event(self) -> object:
        while (event := self._http.next_event()) is h11.NEED_DATA:
            self._http.receive_data(await self._reader.read(READ_BYTES))
        return event

    def _head(self, status: HTTPStatus, headers: Mapping[str, str]) -> bytes:
        fields = {"Date": formatdate(usegmt=True), **SECURITY_HEADERS, **headers}
        return self._sent(
            h11.Response(
                status_code=int(status), headers=list(fields.items()), reason=status.phrase.encode()
            )
        )

    def _sent(self, event: h11.Event) -> bytes:
        return self._http.send(event) or b""

    async def _write(self, data: bytes) -> None:
        self._writer.write(data)
        async with asyncio.timeout(READING_TIMEOUT_MS / 1000):
            await self._writer.drain()

    async def _linger(self) -> None:
        """Drop what the client still sends: closing at once would take the answer from it."""
        if self._writer.can_write_eof():
            self._writer.write_eof()
        left_bytes = LINGER_BYTES_MAX
        with suppress(TimeoutError, OSError):
            async with asyncio.timeout(LINGER_MS / 1000):
                while left_bytes > 0 and (data := await self._reader.read(READ_BYTES)):
                    left_bytes -= len(data)


def _request_of(head: h11.Request, body: bytes, peer: str) -> HttpRequest:
    """Return a request in words. Raises HttpRefused."""
    headers: dict[str, str] = {}
    repeated = set()
    for name, value in head.headers:
        key = name.decode("ascii")
        if key in headers:
            repeated.add(key)
        headers[key] = value.decode("latin-1")
    if doubtful := sorted(repeated & _DOUBTFUL):
        raise HttpRefused(HTTPStatus.BAD_REQUEST, f"the header {doubtful[0]} may stand once")
    path, query = _target_of(head.target.decode("ascii", "replace"))
    method = head.method.decode("ascii")
    return HttpRequest(method, path, query, headers, frozenset(repeated), body, peer)


def _target_of(target: str) -> tuple[str, dict[str, str]]:
    """Return path and query. Raises HttpRefused for other forms of a target, or too long ones."""
    if len(target) > TARGET_CHARACTERS_MAX:
        raise HttpRefused(
            HTTPStatus.REQUEST_URI_TOO_LONG, f"a path has at most {TARGET_CHARACTERS_MAX} bytes"
        )
    if not target.startswith("/"):
        raise HttpRefused(HTTPStatus.BAD_REQUEST, "ask for a path, which begins with /")
    path, _, query = target.partition("?")
    try:
        fields = parse_qsl(query, keep_blank_values=True, max_num_fields=_QUERY_FIELDS_MAX)
    except ValueError as error:
        raise HttpRefused(
            HTTPStatus.BAD_REQUEST, f"a query has at most {_QUERY_FIELDS_MAX} fields"
        ) from error
    return path, dict(fields)
