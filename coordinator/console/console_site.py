"""What the console answers: files of the page, logins, panels and events. Nothing else is there."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from types import MappingProxyType
from typing import Any, Final

from coordinator.console.console_client import ConsoleClient, HandlerOf
from coordinator.console.console_cookie import ConsoleCookie, check_from_page, check_same_site
from coordinator.console.console_login import logged_in
from coordinator.console.console_sessions import ConsoleSession, ConsoleSessions, SessionsFull
from coordinator.console.http_exchange import HttpExchange
from coordinator.console.http_messages import (
    HttpAnswer,
    HttpRefused,
    HttpRequest,
    json_answer,
    refused_answer,
)
from coordinator.console.live_events import EventPlaces, LiveEvents, StreamsFull
from coordinator.console.page_files import page_files
from coordinator.console.panels import PanelRequest, Panels
from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.errors import (
    INVALID_ARGUMENT,
    NOT_FOUND,
    PERMISSION_DENIED,
    RESOURCE_EXHAUSTED,
    UNAUTHENTICATED,
    Refusal,
    reason_name,
    retry_delay_ms,
    status_code,
)

EVENTS_PATH: Final = "/events"
PANEL_PREFIX: Final = "/data/"
GET: Final = "GET"
POST: Final = "POST"
_STATUSES: Final[Mapping[int, HTTPStatus]] = MappingProxyType(
    {
        INVALID_ARGUMENT: HTTPStatus.BAD_REQUEST,
        NOT_FOUND: HTTPStatus.NOT_FOUND,
        PERMISSION_DENIED: HTTPStatus.FORBIDDEN,
        RESOURCE_EXHAUSTED: HTTPStatus.TOO_MANY_REQUESTS,
        UNAUTHENTICATED: HTTPStatus.UNAUTHORIZED,
    }
)
Handler = Callable[[HttpRequest], Awaitable[HttpAnswer]]

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SitePorts:
    """What the site is made of.

    `here` is what this replica says of itself, `reads` how many reads it has begun.
    """

    handler_of: HandlerOf
    cookie: ConsoleCookie
    clock_us: Callable[[], int]
    clock_ms: Callable[[], int]
    here: Callable[[], Mapping[str, Any]]
    reads: Callable[[], int]


class ConsoleSite:
    """Serves connections, each request by the table of paths."""

    def __init__(self, ports: SitePorts) -> None:
        """Read the files of the page. Raises OSError."""
        self._ports = ports
        self._sessions = ConsoleSessions(ports.clock_us)
        self._places = EventPlaces()
        self._panels = Panels(ports.clock_ms)
        self._files = page_files()
        paths: dict[tuple[str, str], Handler] = {
            (POST, "/login"): self._login,
            (POST, "/logout"): self._logout,
            (GET, "/session"): self._session,
        }
        paths |= {(GET, PANEL_PREFIX + name): self._panel for name in self._panels.names}
        self._paths = MappingProxyType(paths)

    async def serve(self, exchange: HttpExchange) -> None:
        """Answer the requests of a connection. Raises OSError, TimeoutError once it is over."""
        goes_on = True
        while goes_on:
            try:
                request = await exchange.next_request()
                if request is None:
                    return
                if (request.method, request.path) == (GET, EVENTS_PATH):
                    await self._events(request, exchange)
                    return
                answer = await self._answer(request)
            except HttpRefused as refused:
                answer = refused_answer(refused)
            goes_on = await exchange.answer(answer)

    def end_all(self) -> None:
        """End all sessions, and with them all streams of events."""
        self._sessions.end_all()

    async def _answer(self, request: HttpRequest) -> HttpAnswer:
        """Return the answer to a request. Raises HttpRefused."""
        handler = self._handler_of(request)
        try:
            return await handler(request)
        except Refusal as refusal:
            raise _refused(refusal) from refusal
        except HttpRefused:
            raise
        except Exception as error:
            _log.exception("a request of the console failed")
            text = "the console failed at this: the replica's log says why"
            raise HttpRefused(HTTPStatus.INTERNAL_SERVER_ERROR, text) from error

    def _handler_of(self, request: HttpRequest) -> Handler:
        """Return what answers a request. Raises HttpRefused."""
        file = self._files.get(request.path)
        if file is not None and request.method == GET:
            return lambda _: _done(file)
        handler = self._paths.get((request.method, request.path))
        if handler is not None:
            return handler
        known = {path for _, path in self._paths} | self._files.keys() | {EVENTS_PATH}
        if request.path not in known:
            raise HttpRefused(HTTPStatus.NOT_FOUND, "the console has nothing here")
        allowed = POST if (POST, request.path) in self._paths else GET
        raise HttpRefused(
            HTTPStatus.METHOD_NOT_ALLOWED, f"use {allowed}", headers={"Allow": allowed}
        )

    # --- Sessions ---

    async def _login(self, request: HttpRequest) -> HttpAnswer:
        check_from_page(request)
        session = await logged_in(self._ports.handler_of, request)
        former = self._sessions.find(self._ports.cookie.secret_in(request))
        if former is not None:
            self._sessions.end(former)
        try:
            secret = self._sessions.begin(session)
        except SessionsFull as error:
            text = "too many users are logged in here: use the console of another replica"
            raise HttpRefused(HTTPStatus.SERVICE_UNAVAILABLE, text) from error
        lasts_s = int(self._sessions.seconds_left(session))
        cookie = self._ports.cookie.setting(secret, lasts_s)
        return json_answer(_told(session), headers={"Set-Cookie": cookie})

    async def _logout(self, request: HttpRequest) -> HttpAnswer:
        check_from_page(request)
        session = self._sessions.find(self._ports.cookie.secret_in(request))
        if session is not None:
            self._sessions.end(session)
        return json_answer({}, headers={"Set-Cookie": self._ports.cookie.setting("", 0)})

    async def _session(self, request: HttpRequest) -> HttpAnswer:
        return json_answer(_told(self._session_of(request)))

    def _session_of(self, request: HttpRequest) -> ConsoleSession:
        """Return the session that a request belongs to. Raises HttpRefused."""
        check_same_site(request)
        session = self._sessions.find(self._ports.cookie.secret_in(request))
        if session is None:
            raise HttpRefused(
                HTTPStatus.UNAUTHORIZED,
                "log in first",
                reason_name(Reason.REASON_UNAUTHENTICATED),
            )
        return session

    # --- What a user may read ---

    async def _panel(self, request: HttpRequest) -> HttpAnswer:
        session = self._session_of(request)
        client = self._client_of(session, request)
        name = request.path.removeprefix(PANEL_PREFIX)
        try:
            return json_answer(await self._panels.read(name, client, PanelRequest(request.query)))
        except Refusal as refusal:
            if refusal.reason == Reason.REASON_UNAUTHENTICATED:
                self._sessions.end(session)
            raise

    async def _events(self, request: HttpRequest, exchange: HttpExchange) -> None:
        """Write events until the page has gone, or the session ends. Raises HttpRefused."""
        session = self._session_of(request)
        client = self._client_of(session, request)
        ports = self._ports
        live = LiveEvents(client, session, self._sessions, ports.here, ports.reads)
        try:
            with self._places.place(session):
                await exchange.begin_events()
                await _until_gone(live.run(exchange.write_events), exchange)
                await exchange.end_events()
        except StreamsFull as full:
            raise HttpRefused(HTTPStatus.TOO_MANY_REQUESTS, str(full)) from full

    def _client_of(self, session: ConsoleSession, request: HttpRequest) -> ConsoleClient:
        return ConsoleClient(self._ports.handler_of, request.peer, session.access_token)


async def _until_gone(work: Awaitable[None], exchange: HttpExchange) -> None:
    """Work until it is done, or the page has gone. Raises what the work raises."""
    writing = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(exchange.gone())
    try:
        await asyncio.wait({writing, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if writing.done():
            writing.result()
            return
        raise ConnectionResetError("the page has gone")
    finally:
        for each in (writing, leaving):
            each.cancel()
        await asyncio.gather(writing, leaving, return_exceptions=True)


async def _done(answer: HttpAnswer) -> HttpAnswer:
    return answer


def _told(session: ConsoleSession) -> dict[str, Any]:
    return {
        "user": session.username,
        "user_id": session.user_id,
        "expires_us": session.expires_at_us,
    }


def _refused(refusal: Refusal) -> HttpRefused:
    """Return a refusal of the cluster in the words of HTTP."""
    status = _STATUSES.get(status_code(refusal.reason), HTTPStatus.SERVICE_UNAVAILABLE)
    delay_ms = retry_delay_ms(refusal)
    headers = {"Retry-After": str(max(1, delay_ms // 1000))} if delay_ms else {}
    return HttpRefused(status, refusal.message, reason_name(refusal.reason), headers)
