"""A console over handlers that stand in for a cluster, and requests as any program sends them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import h11

from coordinator.base.refused_calls import abort
from coordinator.console.console import Console, ConsolePorts
from viewstamp.api.cluster.v1 import cluster_service_pb2 as cluster_api
from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.api.streams.v1 import streams_pb2
from viewstamp.api.streams.v1 import streams_service_pb2 as streams_api
from viewstamp.api.users.v1 import users_pb2
from viewstamp.api.users.v1 import users_service_pb2 as users_api
from viewstamp.api.watch.v1 import watch_service_pb2 as watch_api
from viewstamp.errors import Refusal

PASSWORD: Final = "correct horse"
READ_BYTES: Final = 1 << 16
LOOKS_MAX: Final = 3_000
HOUR_US: Final = 3_600_000_000
FAR_US: Final = 2**52


@dataclass
class StandInCluster:
    """Answers the calls of a console. `refused` are refusals by the name of a method."""

    refused: dict[str, Refusal] = field(default_factory=dict)
    calls: list[str] = field(default_factory=list)
    tokens: set[str] = field(default_factory=set)
    peers: set[str] = field(default_factory=set)
    expires_us: int = FAR_US
    user_id: int = 7
    status: Any = field(default_factory=lambda: cluster_api.GetStatusResponse(cluster="c" * 32))
    streams: list[streams_pb2.Stream] = field(default_factory=list)
    changes: asyncio.Queue[watch_api.WatchResponse] = field(default_factory=asyncio.Queue)

    def handler_of(self, path: str) -> Any:
        """Return the handler of a path, as a gateway does."""
        name = path.rpartition("/")[2]

        class _Handler:
            unary_unary = staticmethod(lambda payload, call: self._unary(name, payload, call))
            unary_stream = staticmethod(lambda payload, call: self._watch(call))

        return _Handler

    async def _unary(self, name: str, payload: bytes, call: Any) -> bytes:
        self.calls.append(name)
        self.peers.add(call.peer())
        self.tokens |= {value for key, value in call.invocation_metadata() if key[0] == "a"}
        if name in self.refused:
            await abort(call, self.refused[name])
        answer: bytes = await getattr(self, f"_{name}")(payload, call)
        return answer

    async def _Login(self, payload: bytes, call: Any) -> bytes:  # noqa: N802 - the RPC's name
        request = users_api.LoginRequest.FromString(payload)
        if request.password != PASSWORD:
            await abort(call, Refusal(Reason.REASON_INVALID_CREDENTIALS, "wrong"))
        answer = users_api.LoginResponse(
            access_token=f"token of {request.username}",
            expires_at=self.expires_us,
            user_id=self.user_id,
        )
        return answer.SerializeToString()

    async def _GetUser(self, payload: bytes, call: Any) -> bytes:  # noqa: N802
        user = users_pb2.User(id=self.user_id, username="ada")
        return users_api.GetUserResponse(user=user).SerializeToString()

    async def _GetStatus(self, payload: bytes, call: Any) -> bytes:  # noqa: N802
        encoded: bytes = self.status.SerializeToString()
        return encoded

    async def _ListStreams(self, payload: bytes, call: Any) -> bytes:  # noqa: N802
        request = streams_api.ListStreamsRequest.FromString(payload)
        begin = int(request.page_token or 0)
        end = begin + request.page_size
        following = str(end) if end < len(self.streams) else ""
        page = streams_api.ListStreamsResponse(
            streams=self.streams[begin:end], next_page_token=following
        )
        return page.SerializeToString()

    async def _watch(self, call: Any) -> None:
        if "Watch" in self.refused:
            await abort(call, self.refused["Watch"])
        await call.write(watch_api.WatchResponse().SerializeToString())
        while True:
            await call.write((await self.changes.get()).SerializeToString())


async def eventually(is_so: Callable[[], Awaitable[bool]]) -> None:
    """Wait until something is so. Raises AssertionError if it never is."""
    for _ in range(LOOKS_MAX):
        if await is_so():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it never was so")


@dataclass(frozen=True)
class Answered:
    """An answer: status, headers in lower case, body."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        """What the body says."""
        return json.loads(self.body)


@dataclass
class ConsoleTrial:
    """A console that is being tried; `cookie` is that of whoever logged in last."""

    cluster: StandInCluster
    address: str
    cookie: str = ""

    @property
    def headers(self) -> dict[str, str]:
        """What a page sends with each request."""
        same = {"Host": self.address, "Sec-Fetch-Site": "same-origin"}
        return {**same, "Cookie": self.cookie} if self.cookie else same

    async def raw(self, data: bytes, *, ends: bool = True) -> bytes:
        """Send bytes over a connection, and return all that comes until its end."""
        async with connected(self.address) as (reader, writer):
            writer.write(data)
            if ends:
                writer.write_eof()
            return await reader.read()

    async def ask(
        self, method: str, path: str, body: bytes = b"", headers: Mapping[str, str] | None = None
    ) -> Answered:
        """Send one request on a connection of its own."""
        sent = {**(self.headers if headers is None else headers), "Connection": "close"}
        if body:
            sent["Content-Length"] = str(len(body))
        client = h11.Connection(h11.CLIENT)
        request = h11.Request(method=method, target=path, headers=list(sent.items()))
        data = client.send(request) or b""
        data += client.send(h11.Data(data=body)) or b""
        data += client.send(h11.EndOfMessage()) or b""
        async with connected(self.address) as (reader, writer):
            writer.write(data)
            return await answered(client, reader)

    async def post(
        self, path: str, value: Any, headers: Mapping[str, str] | None = None
    ) -> Answered:
        """Send JSON as the page does."""
        typed = {"Content-Type": "application/json", "Origin": f"http://{self.address}"}
        sent = {**self.headers, **typed, **(headers or {})}
        return await self.ask("POST", path, json.dumps(value).encode(), sent)

    async def log_in(self, username: str = "ada", password: str = PASSWORD) -> Answered:
        """Log in, and keep the cookie."""
        self.cookie = ""
        answer = await self.post("/login", {"username": username, "password": password})
        self.cookie = answer.headers.get("set-cookie", "").partition(";")[0]
        return answer

    @asynccontextmanager
    async def events(self) -> AsyncIterator[Callable[[], Awaitable[tuple[str, Any]]]]:
        """Open a stream of events, and yield what returns the next one."""
        lines = "".join(f"{name}: {value}\r\n" for name, value in self.headers.items())
        async with connected(self.address) as (reader, writer):
            writer.write(f"GET /events HTTP/1.1\r\n{lines}\r\n".encode())
            head = await reader.readuntil(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200"), head

            async def following() -> tuple[str, Any]:
                name = ""
                while True:
                    line = (await reader.readuntil(b"\n")).decode().strip()
                    if line.startswith("event: "):
                        name = line.removeprefix("event: ")
                    elif line.startswith("data: "):
                        return name, json.loads(line.removeprefix("data: "))

            yield following


async def answered(client: h11.Connection, reader: asyncio.StreamReader) -> Answered:
    """Read one answer."""
    status, headers, body = 0, {}, b""
    while not isinstance(event := client.next_event(), h11.EndOfMessage):
        if event is h11.NEED_DATA:
            client.receive_data(await reader.read(READ_BYTES))
        elif isinstance(event, h11.Response):
            status = event.status_code
            headers = {name.decode(): value.decode() for name, value in event.headers}
        elif isinstance(event, h11.Data):
            body += bytes(event.data)
    return Answered(status, headers, body)


@asynccontextmanager
async def connected(
    address: str,
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """Open a connection, and close it at the end."""
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        yield reader, writer
    finally:
        writer.close()


@asynccontextmanager
async def console_trial(
    cluster: StandInCluster | None = None, directories: Mapping[str, Path] | None = None
) -> AsyncIterator[ConsoleTrial]:
    """Serve a console over a stand-in."""
    served = cluster or StandInCluster()
    ports = ConsolePorts(bytes(16), 3, served.handler_of, None, lambda: 0, directories or {})
    console = Console("127.0.0.1:0", ports)
    await console.start()
    try:
        yield ConsoleTrial(served, console.address)
    finally:
        await console.stop()
