"""Where our transport connects to and listens: names with several addresses, and both families."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterator
from typing import Any
from unittest import mock

import grpc
import grpc.aio
import pytest

from tests.coordinator.peers.peer_trial import until
from tests.viewstamp.wire.echo import ECHO, serving_echo
from viewstamp.wire.binding import bind_sockets
from viewstamp.wire.dialler import host_and_port
from viewstamp.wire.transport import WireTransport

PATIENCE_S = 15
"""Less than the time of one attempt to connect."""
NAME = "two.test"
FIRST, SECOND = "127.0.0.1", "127.0.0.2"
LOOK_UP = socket.getaddrinfo
WAIT = asyncio.wait


@contextlib.contextmanager
def two_addresses() -> Iterator[None]:
    """Have a name lead to two addresses."""

    def look_up(host: str, port: int | None, *arguments: Any, **options: Any) -> list[Any]:
        hosts = (FIRST, SECOND) if host == NAME else (host,)
        return [found for each in hosts for found in LOOK_UP(each, port, *arguments, **options)]

    with mock.patch.object(socket, "getaddrinfo", look_up):
        yield


async def echoed(address: str) -> bytes:
    """Return the answer of a server."""
    channel = WireTransport().channel(address, (), None)
    try:
        answer: bytes = await channel.unary_unary(ECHO)(b"here", timeout=PATIENCE_S)
        return answer
    finally:
        await channel.close()


# --- Connecting ---


async def test_a_silent_address_keeps_nobody_waiting() -> None:
    """Where the first address takes connections and says nothing, the second one serves."""
    async with serving_echo(WireTransport(), f"{SECOND}:0") as (_, port):
        with socket.create_server((FIRST, port)), two_addresses():
            assert await echoed(f"{NAME}:{port}") == b"here"


async def test_an_address_that_refuses_is_passed_over() -> None:
    """Where nobody listens at the first address, the second one serves."""
    async with serving_echo(WireTransport(), f"{SECOND}:0") as (_, port):
        with two_addresses():
            assert await echoed(f"{NAME}:{port}") == b"here"


async def wait_for_both(
    tasks: Any, *, return_when: str = asyncio.ALL_COMPLETED, **times: Any
) -> Any:
    """Do what `asyncio.wait` does, but see two tasks end together."""
    return await WAIT(
        tasks, return_when=asyncio.ALL_COMPLETED if len(tasks) > 1 else return_when, **times
    )


async def test_the_slower_address_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where both addresses are connected at one moment, one connection is kept, and the other one
    closed."""
    monkeypatch.setattr("viewstamp.wire.dialler.NEXT_ATTEMPT_S", 0.0)
    monkeypatch.setattr(asyncio, "wait", wait_for_both)
    ours = WireTransport()
    async with (
        serving_echo(ours, f"{FIRST}:0") as (first, port),
        serving_echo(ours, f"{SECOND}:{port}") as (second, _),
    ):
        channel = ours.channel(f"{NAME}:{port}", (), None)
        with two_addresses():
            assert await channel.unary_unary(ECHO)(b"here", timeout=PATIENCE_S) == b"here"
        await until(lambda: first.connections + second.connections == 1)
        assert await channel.unary_unary(ECHO)(b"again", timeout=PATIENCE_S) == b"again"
        await channel.close()


async def test_if_no_address_serves_the_failure_is_told() -> None:
    """Where nobody listens at either address, the call fails at once with the system's words."""
    with socket.create_server((FIRST, 0)) as free:
        port = free.getsockname()[1]
    with two_addresses(), pytest.raises(grpc.aio.AioRpcError, match="Connection refused"):
        await echoed(f"{NAME}:{port}")


@pytest.mark.parametrize(
    ("address", "parts"),
    [
        ("example.test:7400", ("example.test", 7400)),
        ("[::1]:7400", ("::1", 7400)),
        ("dns:///example.test:7400", ("example.test", 7400)),
        ("dns:example.test:7400", ("example.test", 7400)),
        ("ipv4:192.0.2.1:7400", ("192.0.2.1", 7400)),
        ("ipv6:[2001:db8::1]:7400", ("2001:db8::1", 7400)),
    ],
)
def test_an_address_has_a_host_and_a_port(address: str, parts: tuple[str, int]) -> None:
    """The usual spelling is taken, and so are the library's for names and addresses."""
    assert host_and_port(address) == parts


@pytest.mark.parametrize("address", ["example.test", ":7400", "example.test:http", ""])
def test_what_is_no_address_is_refused(address: str) -> None:
    """Without a host or a numeric port it is said what an address looks like."""
    with pytest.raises(ValueError, match="give HOST:PORT, or unix:PATH"):
        host_and_port(address)


# --- Listening ---


def own_loopbacks() -> list[str]:
    """Return the addresses at which this machine reaches itself."""
    with contextlib.suppress(OSError):
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
        return ["127.0.0.1", "[::1]"]
    return ["127.0.0.1"]


@pytest.mark.parametrize("everywhere", ["0.0.0.0:0", "[::]:0"])
async def test_all_interfaces_are_those_of_both_families(everywhere: str) -> None:
    """A server for all addresses of the machine is reached by each version of the protocol that the
    machine has."""
    async with serving_echo(WireTransport(), everywhere) as (_, port):
        for loopback in own_loopbacks():
            assert await echoed(f"{loopback}:{port}") == b"here"


async def test_a_name_is_bound_at_each_of_its_addresses() -> None:
    """A server at a name with two addresses is reached at both, on one port."""
    with two_addresses():
        async with serving_echo(WireTransport(), f"{NAME}:0") as (_, port):
            assert await echoed(f"{FIRST}:{port}") == b"here"
            assert await echoed(f"{SECOND}:{port}") == b"here"


def test_a_name_with_a_taken_address_is_not_bound_at_all() -> None:
    """If one address of a name is taken that is an error, and the others are free again."""
    with socket.create_server((SECOND, 0)) as taken:
        port = taken.getsockname()[1]
        with two_addresses(), pytest.raises(OSError, match="in use"):
            bind_sockets(f"{NAME}:{port}")
        socket.create_server((FIRST, port)).close()
