"""Open pages are told what is new, in bounded room, for as long as their session lasts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import pytest

from coordinator.console import http_exchange, live_events
from coordinator.console.bounds import STREAMS_PER_SESSION_MAX, STREAMS_PER_USER_MAX
from tests.coordinator.console.console_trial import (
    ConsoleTrial,
    connected,
    console_trial,
    eventually,
)
from viewstamp.api.common.v1 import common_pb2
from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.api.routing.v1 import routing_pb2
from viewstamp.api.watch.v1 import watch_service_pb2 as watch_api
from viewstamp.errors import Refusal


@pytest.fixture
async def trial(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[ConsoleTrial]:
    """A console with short ticks, and a user who has logged in."""
    monkeypatch.setattr(live_events, "TICK_MS", 20)
    monkeypatch.setattr(live_events, "CHANGES_INTERVAL_MS", 10)
    monkeypatch.setattr(live_events, "WATCH_PAUSE_MS", 10)
    async with console_trial() as made:
        await made.log_in()
        yield made


def change(domain: routing_pb2.Stage.ValueType, revision: int) -> watch_api.WatchResponse:
    """A change of a domain, as a watch tells it."""
    header = common_pb2.ResponseHeader(revision=revision)
    return watch_api.WatchResponse(
        header=header, changes=[watch_api.Change(domain=domain, revision=revision)]
    )


async def test_page_hears_of_status_and_changes(trial: ConsoleTrial) -> None:
    """A page gets the status again and again, and the domains of what has changed."""
    async with trial.events() as following:
        seen: dict[str, Any] = {}
        while "changed" not in seen or "status" not in seen:
            name, document = await following()
            seen[name] = document
        assert seen["changed"]["domains"] == ["all"]
        assert seen["status"]["cluster"] == "c" * 32
        assert seen["status"]["here"]["id"] == 3
        trial.cluster.changes.put_nowait(change(routing_pb2.STAGE_STREAMS, 9))
        while (told := await following())[0] != "changed":
            pass
    assert told[1] == {"domains": ["streams"], "revision": 9}


async def test_denied_status_is_told_and_the_page_goes_on(trial: ConsoleTrial) -> None:
    """Who may not read the status hears why, and hears of changes all the same."""
    denied = Refusal(Reason.REASON_PERMISSION_DENIED, "needs read_servers")
    trial.cluster.refused["GetStatus"] = denied
    async with trial.events() as following:
        seen: dict[str, Any] = {}
        while seen.keys() != {"changed", "status"}:
            name, document = await following()
            seen[name] = document
    assert seen["status"]["error"]["message"] == "needs read_servers"


@pytest.mark.parametrize("method", ["GetStatus", "Watch"])
async def test_ended_credentials_end_page_and_session(trial: ConsoleTrial, method: str) -> None:
    """When the cluster refuses the token, the page is told, its stream ends, and so does the
    session."""
    trial.cluster.refused[method] = Refusal(Reason.REASON_UNAUTHENTICATED, "ended")
    async with trial.events() as following:
        while (await following())[0] != "ended":
            pass
        with pytest.raises(asyncio.IncompleteReadError):
            await following()
    assert (await trial.ask("GET", "/session")).status == 401


async def test_logout_ends_the_pages_of_the_session(trial: ConsoleTrial) -> None:
    """After a logout in one page, the others of the session are told at once."""
    async with trial.events() as following:
        await following()
        await trial.post("/logout", {})
        while (await following())[0] != "ended":
            pass


async def test_a_watch_that_ends_begins_again(trial: ConsoleTrial) -> None:
    """While the cluster serves no watch, the page waits; then it reads everything anew."""
    trial.cluster.refused["Watch"] = Refusal(Reason.REASON_VIEW_CHANGE, "later")
    async with trial.events() as following:
        for _ in range(3):
            assert (await following())[0] == "status"
        trial.cluster.refused.clear()
        while (told := await following())[0] != "changed":
            pass
    assert told[1]["domains"] == ["all"]


async def test_pages_have_limits(trial: ConsoleTrial) -> None:
    """A session, and a user, have only so many open pages; a closed one makes room."""
    async with AsyncExitStack() as stack:
        for _ in range(STREAMS_PER_USER_MAX // STREAMS_PER_SESSION_MAX):
            await trial.log_in()
            for _ in range(STREAMS_PER_SESSION_MAX):
                await stack.enter_async_context(trial.events())
            answer = await trial.ask("GET", "/events")
            assert answer.status == 429
        await trial.log_in()
        answer = await trial.ask("GET", "/events")
        assert (answer.status, "this user has" in answer.json["error"]["message"]) == (429, True)
    await eventually(lambda: _has_room(trial))


async def _has_room(trial: ConsoleTrial) -> bool:
    return await _status_of_events(trial) == b"200"


async def _status_of_events(trial: ConsoleTrial) -> bytes:
    """Return how the opening of a stream is answered."""
    async with connected(trial.address) as (reader, writer):
        head = f"GET /events HTTP/1.1\r\nHost: a\r\nCookie: {trial.cookie}\r\n\r\n"
        writer.write(head.encode())
        return (await reader.readuntil(b"\r\n")).split(b" ")[1]


async def test_page_that_does_not_read_is_given_up(
    trial: ConsoleTrial, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A client that leaves its events unread loses its connection and its place."""
    caplog.set_level("INFO")
    monkeypatch.setattr(http_exchange, "READING_TIMEOUT_MS", 50)
    monkeypatch.setattr(live_events, "TICK_MS", 0)
    trial.cluster.status.description = "x" * 4_000_000
    async with connected(trial.address) as (_, writer):
        head = f"GET /events HTTP/1.1\r\nHost: a\r\nCookie: {trial.cookie}\r\n\r\n"
        writer.write(head.encode())
        await eventually(lambda: _said(caplog, "a client of the console has gone"))
    assert await _status_of_events(trial) == b"200"


async def _said(caplog: pytest.LogCaptureFixture, text: str) -> bool:
    return text in caplog.text


async def test_a_defect_ends_the_stream(
    trial: ConsoleTrial, caplog: pytest.LogCaptureFixture
) -> None:
    """What fails behind a page is logged and ends its stream: it does not go on in silence."""

    async with trial.events() as following:
        await following()
        trial.cluster.status = "planted: no message"
        with pytest.raises(asyncio.IncompleteReadError):
            while True:
                await following()
    assert "a connection of the console failed" in caplog.text
