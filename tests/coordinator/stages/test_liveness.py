"""Whether a service lives, and what keeps it busy: two questions, over a real process."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from coordinator.stages.busyness import LOOK_INTERVAL_MS, PAUSE_MS_MAX, Busyness
from coordinator.stages.client import StageClient, StageEvents
from coordinator.stages.greeting import CoordinatorIdentity
from coordinator.stages.poison import DEATHS_MAX, Poison
from services.runtime.failures import internal_error
from tests.services.runtime import echo
from tests.services.runtime.echo import PUT, batch, command, put_request
from viewstamp import grpc_transport, limits, transports
from viewstamp.api.domain.v1 import domain_service_pb2 as pb
from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.grpc_transport import GrpcTransport

WAIT_S = 30


class Followed:
    """A client, its events, and its echo process."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.replies: asyncio.Queue[pb.BatchReply] = asyncio.Queue()
        self.lost: asyncio.Queue[str] = asyncio.Queue()
        self.busy: list[int] = []
        self.got_on = asyncio.Event()
        self.given_up: list[pb.Attempt] = []
        self.client = StageClient(
            echo.DOMAIN.stage,
            address,
            StageEvents(
                replied=self.replies.put_nowait,
                deferred=lambda outcome: None,
                connected=lambda describe: None,
                lost=self.lost.put_nowait,
                busy=self._is_busy,
                gave_up=self.given_up.append,
            ),
        )
        self.process: asyncio.subprocess.Process
        self.starts = 0

    def _is_busy(self, ms: int) -> None:
        self.busy.append(ms)
        if not ms:
            self.got_on.set()

    async def start(self) -> None:
        """Start the service."""
        self.process = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-m", "tests.services.runtime.echo_process", "--listen", self.address),
            cwd=echo.ROOT,
            stdout=asyncio.subprocess.DEVNULL,
        )
        self.starts += 1

    async def supervise(self) -> None:
        """Restart the service whenever it ends, as a supervisor does."""
        while True:
            await self.process.wait()
            await self.start()

    async def reply(self) -> pb.BatchReply:
        """Return the next answer."""
        return await asyncio.wait_for(self.replies.get(), WAIT_S)


@contextlib.asynccontextmanager
async def followed(address: str) -> AsyncIterator[Followed]:
    """Run a client and its service until the block is left."""
    followed = Followed(address)
    await followed.start()
    run = asyncio.create_task(followed.client.run(CoordinatorIdentity(b"c" * 16, 0, 1)))
    supervisor = asyncio.create_task(followed.supervise())
    try:
        yield followed
    finally:
        supervisor.cancel()
        run.cancel()
        await asyncio.gather(run, supervisor, return_exceptions=True)
        await followed.client.close()
        with contextlib.suppress(ProcessLookupError):
            followed.process.kill()
        await followed.process.wait()


def put(sequence: int, fault: str = "") -> pb.Batch:
    """Return a logged batch that stores a word."""
    request = put_request(f"name-{sequence}", "text", fault=fault)
    return batch(sequence, command(PUT, request, revision=sequence))


@pytest.fixture(params=["unix", pytest.param("tcp", marks=pytest.mark.long)])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where the service listens: on a Unix socket, or on a port."""
    if request.param == "unix":
        return f"unix:{tmp_path}/echo.sock"
    with socket.create_server(("127.0.0.1", 0)) as free:
        return f"127.0.0.1:{free.getsockname()[1]}"


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the gRPC library carry the calls here, and of the processes that are started."""
    monkeypatch.setenv(transports.VARIABLE, transports.GRPCIO)
    monkeypatch.setattr(grpc_transport, "transport", GrpcTransport())


async def test_a_busy_service_lives(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A handler that takes longer than a silent service is tolerated is reported and waited for."""
    await stays_connected(address, "computing", monkeypatch)


@pytest.mark.usefixtures("library")
async def test_a_service_that_keeps_the_lock_lives_on_the_library(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So does one that keeps Python's lock for so long, where a thread that needs none tells it."""
    await stays_connected(address, "busy", monkeypatch)


async def stays_connected(address: str, fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a handler take long, and expect answers, no lost connection, and that it was told."""
    monkeypatch.setattr("coordinator.stages.busyness.STAGE_BUSY_MS", 2 * LOOK_INTERVAL_MS)
    async with followed(address) as it:
        it.client.send(put(1))
        await it.reply()
        it.client.send(put(2, fault))
        it.client.send(put(3))
        assert [(await it.reply()).sequence for _ in range(2)] == [2, 3]
        assert it.lost.empty()
        assert (it.client.restarts, it.starts) == (0, 1)
        await asyncio.wait_for(it.got_on.wait(), WAIT_S)
    assert it.busy[:-1] == sorted(it.busy[:-1])
    assert max(it.busy) > limits.STAGE_TIMEOUT_MS // 2


async def test_a_stopped_service_is_given_up(tmp_path: Path) -> None:
    """A stopped service's silence ends the stream; once it goes on it gets everything again."""
    async with followed(f"unix:{tmp_path}/echo.sock") as it:
        it.client.send(put(1))
        await it.reply()
        it.process.send_signal(signal.SIGSTOP)
        it.client.send(put(2))
        assert "ping timeout" in await asyncio.wait_for(it.lost.get(), WAIT_S)
        it.process.send_signal(signal.SIGCONT)
        assert (await it.reply()).sequence == 2
        assert (it.client.restarts, it.starts) == (1, 1)


def test_only_looks_count() -> None:
    """A pause of the coordinator counts only a little; an answer, or silence while nothing is
    due, resets the count."""
    busyness = Busyness()
    busyness.look(0, is_due=True, now_ms=1_000_000)
    assert busyness.owed_ms == PAUSE_MS_MAX
    busyness.look(0, is_due=True, now_ms=1_000_000 + LOOK_INTERVAL_MS)
    assert busyness.owed_ms == PAUSE_MS_MAX + LOOK_INTERVAL_MS
    busyness.look(1, is_due=True, now_ms=1_000_000 + 2 * LOOK_INTERVAL_MS)
    assert busyness.owed_ms == 0
    for _ in range(limits.STAGE_BUSY_MS // PAUSE_MS_MAX):
        assert not busyness.is_busy
        busyness.look(1, is_due=True, now_ms=busyness.owed_ms * 10 + 2_000_000)
    assert busyness.is_busy
    busyness.look(1, is_due=False, now_ms=3_000_000)
    assert not busyness.is_busy


def mixed(sequence: int, fault: str) -> pb.Batch:
    """Return a batch of ten commands, the second of which has a fault."""
    requests = [put_request(f"{i}", fault=fault if i == 1 else "") for i in range(10)]
    return batch(sequence, command(PUT, *requests, revision=sequence))


@pytest.mark.parametrize(
    ("fault", "starts"),
    [
        pytest.param("deep", 2, id="overflows the stack"),
        # Memory may be short on this machine alone: that ends processes like the cases below.
        pytest.param("memory", 3 + DEATHS_MAX, id="exhausts the memory", marks=pytest.mark.long),
        # The process dies unexpectedly, then in isolation, then as often as needed to prove the
        # cause.
        pytest.param("kill", 3 + DEATHS_MAX, id="ends the process", marks=pytest.mark.long),
    ],
)
async def test_what_ends_a_service_is_refused(tmp_path: Path, fault: str, starts: int) -> None:
    """The batch is handled again, alone, and the failing command is an internal error; the
    others of it stand, and the answers stay the same when the service gets everything again."""
    async with followed(f"unix:{tmp_path}/echo.sock") as it:
        it.client.send(put(1))
        it.client.send(mixed(2, fault))
        it.client.send(put(3))
        replies = [await it.reply() for _ in range(3)]
        assert [reply.sequence for reply in replies] == [1, 2, 3]
        (refused,) = replies[1].outcomes[0].command.errors
        assert (refused.index, refused.error.reason) == (1, Reason.REASON_INTERNAL)
        assert refused.error == internal_error("viewstamp.tests.echo.v1.EchoService/Put")
        assert it.starts == starts
        assert [each.revision for each in it.given_up] == ([] if fault == "deep" else [3])
        it.process.kill()
        await asyncio.wait_for(it.lost.get(), WAIT_S)
        it.client.send(put(4))
        assert (await it.reply()).sequence == 4
        assert it.starts == starts + 1


def attempt(call: int, sequence: int = 7) -> pb.Attempt:
    """Return the message of a service before it runs a handler."""
    return pb.Attempt(sequence=sequence, item=1, call=call, where="x/Y", revision=9)


def test_only_what_was_seen_to_end_processes_is_given_up() -> None:
    """Only calls seen to end processes are given up; others are retried, however often it dies."""
    given_up: list[pb.Attempt] = []
    poison = Poison(given_up.append)
    assert poison.isolation(7) is None
    poison.died([7, 8])
    assert poison.isolation(7) == pb.Isolate(sequence=7)
    poison.died([7])
    assert poison.isolation(7) == pb.Isolate(sequence=7, notes=True, confirms=True)
    for _ in range(DEATHS_MAX):
        assert not given_up
        poison.tries(attempt(4))
        poison.tries(attempt(5))
        poison.died([7, 8])
    assert poison.isolation(7) == pb.Isolate(
        sequence=7, notes=True, confirms=True, given_up=[attempt(5)]
    )
    poison.answered(7, needs_isolation=True)
    poison.answered(8, needs_isolation=False)
    assert poison.isolation(7) is not None
    assert poison.isolation(8) is None
    poison.forget(7)
    assert poison.isolation(7) is None
    assert given_up == [attempt(5)]
