"""What the console answers to pages, to strangers, and to hostile programs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from coordinator.console import http_exchange, listener
from coordinator.console.bounds import (
    BODY_BYTES_MAX,
    CONNECTIONS_PER_ADDRESS_MAX,
    FILTERED_PAGE_ROWS,
    HEAD_BYTES_MAX,
    ROWS_PER_PAGE,
    TARGET_CHARACTERS_MAX,
)
from coordinator.console.http_messages import SECURITY_HEADERS
from tests.coordinator.console.console_trial import ConsoleTrial, connected, console_trial
from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.api.streams.v1 import streams_pb2
from viewstamp.errors import Refusal

DATA = ("/data/streams", "/data/topics?stream=1", "/data/groups", "/data/brokers", "/session")
HOST = b"Host: 127.0.0.1\r\n"


@pytest.fixture
async def trial() -> AsyncIterator[ConsoleTrial]:
    """A console."""
    async with console_trial() as made:
        yield made


@pytest.mark.parametrize("path", ["/", "/console.js", "/session", "/nothing", "/login"])
async def test_every_answer_has_the_headers_that_protect_it(trial: ConsoleTrial, path: str) -> None:
    """Files, data and refusals alike: no foreign content, no frame, no guessing, no keeping."""
    answer = await trial.ask("GET", path)
    for name, value in SECURITY_HEADERS.items():
        is_file = answer.status == 200 and name == "Cache-Control"
        assert answer.headers[name.lower()] == ("no-cache" if is_file else value)
    assert "unsafe" not in answer.headers["content-security-policy"]


async def test_page_has_no_markup_that_its_policy_forbids(trial: ConsoleTrial) -> None:
    """No inline script, style or handler, and no address outside the console."""
    page = (await trial.ask("GET", "/")).body.decode()
    assert "<style" not in page and " style=" not in page and " onclick=" not in page
    assert "http" not in page
    assert page.count("<script") == page.count('<script type="module" src="/')


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/", 200),
        ("GET", "/icon.svg", 200),
        ("GET", "/../console.py", 404),
        ("GET", "/%2e%2e/console.py", 404),
        ("GET", "/page/index.html", 404),
        ("GET", "/etc/passwd", 404),
        ("GET", "/data/", 404),
        ("GET", "/data/users", 404),
        ("POST", "/", 405),
        ("PUT", "/login", 405),
        ("GET", "/login", 405),
        ("DELETE", "/session", 405),
        ("POST", "/data/streams", 405),
        ("OPTIONS", "/events", 405),
        ("TRACE", "/", 405),
        ("GET", "/" + "a" * TARGET_CHARACTERS_MAX, 414),
        ("GET", "*", 400),
        ("GET", "http://elsewhere/", 400),
        ("GET", "/session?" + "&".join(f"a{n}=1" for n in range(17)), 400),
    ],
)
async def test_only_known_paths_and_methods_are_served(
    trial: ConsoleTrial, method: str, path: str, status: int
) -> None:
    """There is a file or a handler for what the table names, and nothing else."""
    answer = await trial.ask(method, path)
    assert answer.status == status
    assert ("allow" in answer.headers) == (status == 405)


async def test_an_answer_to_head_has_no_body(trial: ConsoleTrial) -> None:
    """HEAD is refused, too, and the refusal ends behind its header (RFC 9110, 9.3.2)."""
    said = await trial.raw(b"HEAD / HTTP/1.1\r\n" + HOST + b"Connection: close\r\n\r\n")
    assert said.startswith(b"HTTP/1.1 405")
    assert said.endswith(b"\r\n\r\n")


@pytest.mark.parametrize("path", [*DATA, "/events"])
@pytest.mark.parametrize(
    "cookie", ["", "viewstamp-00000000-3=forged", "viewstamp-00000000-3=", "a"]
)
async def test_nothing_is_told_without_a_session(
    trial: ConsoleTrial, path: str, cookie: str
) -> None:
    """Without a cookie, or with a forged one, there is no data, and the cluster is not asked."""
    trial.cookie = cookie
    answer = await trial.ask("GET", path)
    assert (answer.status, answer.json["error"]["reason"]) == (401, "UNAUTHENTICATED")
    assert trial.cluster.calls == []


async def test_login_gives_a_cookie_that_pages_cannot_read(trial: ConsoleTrial) -> None:
    """The cookie is for this host alone and hidden from scripts; the token stays in the process."""
    answer = await trial.log_in()
    assert answer.json["user"] == "ada"
    value = answer.headers["set-cookie"]
    assert value.startswith("viewstamp-00000000-3=")
    assert {"HttpOnly", "SameSite=Strict", "Path=/"} <= set(value.split("; "))
    assert "token of" not in value + answer.body.decode()
    assert (await trial.ask("GET", "/session")).json == answer.json
    assert {peer.rpartition(":")[0] for peer in trial.cluster.peers} == {"ipv4:127.0.0.1"}


async def test_logout_ends_the_session_and_only_it(trial: ConsoleTrial) -> None:
    """After logout the cookie opens nothing; another login of the same user goes on."""
    await trial.log_in()
    first = trial.cookie
    await trial.log_in()
    assert (await trial.post("/logout", {})).status == 200
    assert (await trial.ask("GET", "/session")).status == 401
    trial.cookie = first
    assert (await trial.ask("GET", "/session")).status == 200
    assert "Logout" not in trial.cluster.calls


async def test_login_anew_replaces_the_session_of_the_browser(trial: ConsoleTrial) -> None:
    """Whoever logs in again in the same browser leaves no session behind."""
    await trial.log_in()
    first = trial.cookie
    again = await trial.post("/login", {"username": "ada", "password": "correct horse"})
    assert again.status == 200
    trial.cookie = first
    assert (await trial.ask("GET", "/session")).status == 401


@pytest.mark.parametrize(
    ("refusal", "status"),
    [
        (Refusal(Reason.REASON_INVALID_CREDENTIALS, "wrong"), 401),
        (Refusal(Reason.REASON_QUOTA_EXCEEDED, "wait", retry_delay_ms=5_000), 429),
        (Refusal(Reason.REASON_VIEW_CHANGE, "later"), 503),
    ],
)
async def test_refused_logins_say_why(trial: ConsoleTrial, refusal: Refusal, status: int) -> None:
    """The gateway's refusal of a login becomes a status and its words, and gives no session."""
    trial.cluster.refused["Login"] = refusal
    answer = await trial.log_in()
    assert (answer.status, answer.json["error"]["message"]) == (status, refusal.message)
    assert "set-cookie" not in answer.headers
    assert ("retry-after" in answer.headers) == (status == 429)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b'"a"',
        b'{"username": "a"}',
        b'{"username": 1, "password": "b"}',
        b'{"username": "a", "password": "b", "token": "c"}',
        b'{"token": "\\ud800"}',
        b"[" * 3_000,
        b"\xff\xfe",
    ],
)
async def test_malformed_logins_are_refused_without_repeating_them(
    trial: ConsoleTrial, body: bytes
) -> None:
    """What is no login never comes to the cluster, and the answer shows what would be one."""
    typed = {"Content-Type": "application/json", "Origin": f"http://{trial.address}"}
    answer = await trial.ask("POST", "/login", body, {**trial.headers, **typed})
    assert answer.status == 400
    assert '{"username": "...", "password": "..."}' in answer.json["error"]["message"]
    assert trial.cluster.calls == []


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Content-Type": "text/plain"}, 415),
        ({"Content-Type": "application/x-www-form-urlencoded"}, 415),
        ({"Origin": "https://elsewhere.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": ""}, 403),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Sec-Fetch-Site": "same-site"}, 403),
    ],
)
@pytest.mark.parametrize("path", ["/login", "/logout"])
async def test_other_pages_log_nobody_in_or_out(
    trial: ConsoleTrial, path: str, headers: dict[str, str], status: int
) -> None:
    """A request that another site makes is refused, and what the session may do stays."""
    await trial.log_in()
    trial.cluster.calls.clear()
    credentials = {"username": "eve", "password": "correct horse"}
    assert (await trial.post(path, credentials, headers)).status == status
    assert trial.cluster.calls == []
    assert (await trial.ask("GET", "/session")).status == 200


async def test_data_is_not_for_other_sites(trial: ConsoleTrial) -> None:
    """What a browser asks for on behalf of another site is refused in spite of the cookie."""
    await trial.log_in()
    headers = {**trial.headers, "Sec-Fetch-Site": "cross-site"}
    assert (await trial.ask("GET", "/data/streams", headers=headers)).status == 403


async def test_a_refused_token_ends_the_session(trial: ConsoleTrial) -> None:
    """When the cluster takes the credentials no more, the session is over at once."""
    await trial.log_in()
    refusal = Refusal(Reason.REASON_UNAUTHENTICATED, "ended")
    trial.cluster.refused["ListStreams"] = refusal
    assert (await trial.ask("GET", "/data/streams")).status == 401
    trial.cluster.refused.clear()
    assert (await trial.ask("GET", "/session")).status == 401


async def test_what_a_user_may_not_read_is_said(trial: ConsoleTrial) -> None:
    """A denied panel answers with the cluster's words, and the session goes on."""
    await trial.log_in()
    denied = Refusal(Reason.REASON_PERMISSION_DENIED, "needs read_streams")
    trial.cluster.refused["ListStreams"] = denied
    for path in ("/data/streams", "/data/groups"):
        answer = await trial.ask("GET", path)
        assert (answer.status, answer.json["error"]["message"]) == (403, "needs read_streams")
    assert (await trial.ask("GET", "/session")).status == 200


async def test_a_filter_looks_beyond_a_page_and_is_bounded(trial: ConsoleTrial) -> None:
    """Of thousands of streams a page shows a bounded number; the next page goes on behind it."""
    names = [f"stream-{n}" for n in range(3_000)] + ["<b>last</b>"]
    trial.cluster.streams = [streams_pb2.Stream(id=n, name=each) for n, each in enumerate(names)]
    await trial.log_in()
    plain = (await trial.ask("GET", "/data/streams")).json
    assert len(plain["streams"]) == ROWS_PER_PAGE
    many = (await trial.ask("GET", "/data/streams?filter=STREAM")).json
    assert ROWS_PER_PAGE <= len(many["streams"]) <= ROWS_PER_PAGE + FILTERED_PAGE_ROWS
    following = (await trial.ask("GET", f"/data/streams?filter=stream&page={many['next']}")).json
    assert following["streams"][0]["id"] == many["streams"][-1]["id"] + 1
    found = (await trial.ask("GET", "/data/streams?filter=LAST")).json
    assert [each["name"] for each in found["streams"]] == ["<b>last</b>"]
    assert found["looked_at"] == len(names)


@pytest.mark.parametrize(
    "query", ["", "?stream=", "?stream=a", "?stream=" + "9" * 30, "?stream=-1"]
)
async def test_topics_need_the_id_of_a_stream(trial: ConsoleTrial, query: str) -> None:
    """What is no id is refused with an example of one."""
    await trial.log_in()
    answer = await trial.ask("GET", f"/data/topics{query}")
    assert (answer.status, "?stream=7" in answer.json["error"]["message"]) == (400, True)


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"GET / HTTP/1.1\r\nHost: a\r\nX: " + b"a" * (HEAD_BYTES_MAX * 2), 431),
        (
            b"POST /login HTTP/1.1\r\n"
            + HOST
            + b"Content-Length: 999999999\r\n\r\n"
            + b"a" * 9_999,
            413,
        ),
        (
            b"POST /login HTTP/1.1\r\n"
            + HOST
            + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\nab",
            400,
        ),
        (b"POST /login HTTP/1.1\r\n" + HOST + b"Content-Length: -1\r\n\r\n", 400),
        (b"POST /login HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n", 400),
        (b"POST /login HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: gzip\r\n\r\n", 501),
        (b"GET / HTTP/1.1\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: a\r\nCookie: a\r\nCookie: b\r\n\r\n", 400),
        (b"GET /\x00 HTTP/1.1\r\n" + HOST + b"\r\n", 400),
        (b"GET / HTTP/2.0\r\n" + HOST + b"\r\n", 505),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x00" * 64 + b"\r\n\r\n", 400),
        (b"hello\r\n\r\n", 400),
    ],
)
async def test_what_is_no_request_ends_the_connection(
    trial: ConsoleTrial, data: bytes, status: int
) -> None:
    """Oversized, ambiguous and foreign bytes get one refusal, and no second request is read."""
    said = await trial.raw(data + b"GET / HTTP/1.1\r\n" + HOST + b"\r\n")
    assert said.startswith(b"HTTP/1.1 %d " % status), said[:100]
    assert said.count(b"HTTP/1.1 ") == 1


async def test_a_body_is_bounded_whatever_its_head_says(trial: ConsoleTrial) -> None:
    """Chunks without a length are read up to the limit, and not beyond."""
    chunk = b"%x\r\n" % BODY_BYTES_MAX + b"a" * BODY_BYTES_MAX + b"\r\n"
    head = b"POST /login HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\n"
    said = await trial.raw(head + chunk + chunk)
    assert said.startswith(b"HTTP/1.1 413 ")


@pytest.mark.parametrize(
    ("data", "answer"),
    [
        (b"", b""),
        (b"GET / HT", b"HTTP/1.1 408 "),
        (b"POST /login HTTP/1.1\r\n" + HOST, b"HTTP/1.1 408 "),
    ],
)
async def test_slow_clients_lose_their_connection(
    trial: ConsoleTrial, monkeypatch: pytest.MonkeyPatch, data: bytes, answer: bytes
) -> None:
    """Whoever does not send a whole request in time is told so, and whoever says nothing is not."""
    monkeypatch.setattr(http_exchange, "REQUEST_TIMEOUT_MS", 50)
    async with asyncio.timeout(60):
        said = await trial.raw(data, ends=False)
    assert said.startswith(answer) and bool(said) == bool(answer)


async def test_one_address_does_not_take_all_connections(trial: ConsoleTrial) -> None:
    """Connections of one address beyond its share are closed unheard; a freed place is taken."""
    held = [connected(trial.address) for _ in range(CONNECTIONS_PER_ADDRESS_MAX)]
    ends = [await each.__aenter__() for each in held]
    try:
        for _, writer in ends:
            writer.write(b"GET /icon.svg HTTP/1.1\r\n" + HOST + b"\r\n")
        for reader, _ in ends:
            assert await reader.readuntil(b"\r\n") == b"HTTP/1.1 200 OK\r\n"
        async with connected(trial.address) as (reader, _):
            assert await reader.read() == b""
    finally:
        for each in held:
            await each.__aexit__(None, None, None)
    said = b""
    async with asyncio.timeout(10):
        while not said:
            async with connected(trial.address) as (reader, writer):
                writer.write(b"GET /icon.svg HTTP/1.1\r\n" + HOST + b"\r\n")
                said = await reader.read(1)


async def test_requests_share_a_connection(trial: ConsoleTrial) -> None:
    """A connection carries one request after another, also such that are refused."""
    one = b"GET /nothing HTTP/1.1\r\n" + HOST + b"\r\n"
    last = b"GET / HTTP/1.1\r\n" + HOST + b"Connection: close\r\n\r\n"
    said = await trial.raw(one + one + last)
    assert said.count(b"HTTP/1.1 404 ") == 2
    assert said.count(b"HTTP/1.1 200 ") == 1


async def test_failures_of_the_console_are_logged_and_told(
    trial: ConsoleTrial, caplog: pytest.LogCaptureFixture
) -> None:
    """A defect is an answer without details, and a line in the log; the next request is served."""
    await trial.log_in()
    trial.cluster.streams = [object()]  # type: ignore[list-item]
    answer = await trial.ask("GET", "/data/streams")
    assert (answer.status, "log says why" in answer.json["error"]["message"]) == (500, True)
    assert "a request of the console failed" in caplog.text
    assert (await trial.ask("GET", "/session")).status == 200


async def test_taken_address_is_named(trial: ConsoleTrial) -> None:
    """Whoever starts a second console at the same address learns which flag to change."""
    with pytest.raises(OSError, match=f"--console-listen {trial.address}: cannot be bound"):
        listener.ConsoleListener(trial.address, None, lambda _: asyncio.sleep(0))
