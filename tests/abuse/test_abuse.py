"""Hostile callers beside an honest one: what the campaign can detect, and a short campaign."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from rich.console import Console

from tests.abuse.attacks import KINDS
from tests.abuse.campaign import AbuseOutcome, Plan, run
from tests.abuse.honest import Figures, percentiles
from tests.abuse.observation import Observation
from tests.abuse.relay import Relay
from tests.abuse.report import BEGIN, END, write_tables
from tests.abuse.stalls import EXCUSE_MS, SAMPLE_MS, Stalls, waited_of_main_threads
from tests.abuse.tally import Tally
from viewstamp.api.errors.v1 import errors_pb2
from viewstamp.api.submit.v1 import submit_service_pb2 as submit_pb2

SHORT: Any = Plan(calls=50_000, seconds=15, idle_s=3, topics=1_000)


def failure(code: grpc.StatusCode, details: str) -> grpc.aio.AioRpcError:
    """Return a call that failed without an ErrorInfo."""
    nothing = grpc.aio.Metadata()
    return grpc.aio.AioRpcError(code, nothing, nothing, details)


def outcome(**changes: Any) -> AbuseOutcome:
    """Return the results of a campaign that kept every promise, except for the given changes."""
    replicas: Any = type("Replicas", (), {"replicas": []})()
    views, excuses = changes.pop("views", [0]), changes.pop("excuses", {})
    observation = Observation(replicas, replicas, views=views, excuses=excuses)
    tally = changes.pop("tally", Tally(calls=SHORT.calls))
    figures = changes.pop("figures", Figures())
    assert not changes
    return AbuseOutcome(SHORT, 1.0, {"abused": figures}, {"one": tally.as_dict()}, observation)


def test_an_outcome_without_a_fault_is_kept() -> None:
    """A campaign in which nothing went wrong has no broken promise."""
    assert outcome().broken() == []


@pytest.mark.parametrize("code", [grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN])
def test_a_server_that_blames_itself_is_noticed(code: grpc.StatusCode) -> None:
    """A hostile call that is answered INTERNAL or UNKNOWN breaks the promise."""
    tally = Tally(calls=SHORT.calls)
    tally.failed(failure(code, "Exception in servicer"))
    (said,) = outcome(tally=tally).broken()
    assert code.name in said


def test_what_a_client_does_to_itself_is_not_the_servers_fault() -> None:
    """Errors of the client's own library, for a call that it ended, break no promise."""
    tally = Tally(calls=SHORT.calls)
    tally.failed(failure(grpc.StatusCode.INTERNAL, "Internal error from Core"))
    assert outcome(tally=tally).broken() == []


def test_internal_errors_inside_replies_are_noticed() -> None:
    """A command of a packed request that is answered INTERNAL breaks the promise."""
    tally = Tally(calls=SHORT.calls)
    error = errors_pb2.Error(reason=errors_pb2.REASON_INTERNAL)
    refused = errors_pb2.IndexedError(index=3, error=error)
    reply = submit_pb2.CommandReply(number=1, spans=[submit_pb2.SpanReply(errors=[refused])])
    tally.replied(reply)
    assert len(outcome(tally=tally).broken()) == 1


def test_view_changes_and_honest_failures_and_idleness_are_noticed() -> None:
    """A changed view, a failed honest call and too few hostile calls are reported one by one."""
    figures = Figures()
    figures.errors["command: OutcomeUnknown"] += 1
    said = outcome(views=[0, 1], figures=figures, tally=Tally(calls=1)).broken()
    assert [text.partition(" ")[0] for text in said] == ["the", "honest", "1"]


class BusyMachine:
    """A machine with given waits of coordinators; it takes a sample every 50 ms."""

    def __init__(self) -> None:
        self.waited_ms = {"a": 0.0, "b": 0.0}
        self.stalls = Stalls(lambda: dict(self.waited_ms))
        self.now_ms = 0.0

    def pass_time(self, duration_ms: int, **waited_ms: float) -> None:
        """Let time pass; in every sample the named coordinators wait for so long."""
        for _ in range(duration_ms // SAMPLE_MS):
            self.now_ms += SAMPLE_MS
            for name, more_ms in waited_ms.items():
                self.waited_ms[name] += more_ms
            self.stalls.sample(self.now_ms)


@pytest.mark.parametrize(
    ("at_once_ms", "steadily_ms", "is_excused"),
    [(0, 0, False), (EXCUSE_MS - 10, 0, False), (EXCUSE_MS, 0, True), (0, 5, False), (0, 40, True)],
)
def test_a_stall_is_what_a_coordinator_waits_within_a_backups_patience(
    at_once_ms: float, steadily_ms: float, is_excused: bool
) -> None:
    """Waits for a processor count if their sum in a window is long, even when evenly spread."""
    machine = BusyMachine()
    machine.pass_time(5_000)
    machine.pass_time(2_000, a=steadily_ms)
    machine.waited_ms["b"] += at_once_ms
    machine.pass_time(100)
    assert bool(machine.stalls.excuse(machine.now_ms - 1_000)) == is_excused
    machine.pass_time(5_000)
    assert not machine.stalls.excuse(machine.now_ms - 1_000), "what is long over excuses nothing"


def test_a_view_that_changes_while_the_machine_stalls_is_not_judged() -> None:
    """A view change during a stall is reported and breaks no promise; another one does."""
    excuses = {1: "the machine slept"}
    assert outcome(views=[0, 1], excuses=excuses).broken() == []
    assert len(outcome(views=[0, 1, 2], excuses=excuses).broken()) == 1
    assert outcome(views=[0, 1], excuses=excuses).as_dict()["stalls"] == {"1": "the machine slept"}


async def test_a_coordinator_that_works_or_sleeps_does_not_wait_for_a_processor() -> None:
    """The kernel is asked only for waits of the process itself, and has them."""
    pids = {"own": os.getpid(), "gone": 2**22 + 1}
    path = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/schedstat")
    before_ns = int(path.read_text().split()[1])
    waited_ms = waited_of_main_threads(pids)
    after_ns = int(path.read_text().split()[1])
    assert waited_ms.keys() == {"own"}
    assert before_ns <= round(waited_ms["own"] * 1_000_000) <= after_ns


def test_percentiles() -> None:
    """The median and the 99th percentile are those of the sorted values."""
    row = percentiles([float(value) for value in range(100, 0, -1)])
    assert row == {"count": 100, "p50_ms": 51.0, "p99_ms": 100.0, "max_ms": 100.0}
    assert percentiles([]) == {"count": 0}


def test_tables_replace_those_before(tmp_path: Path) -> None:
    """The tables of a document are replaced between their marks, and nothing else."""
    document = tmp_path / "security.md"
    document.write_text(f"head\n{BEGIN}\nold\n{END}\ntail\n")
    write_tables(document, outcome().as_dict())
    text = document.read_text()
    assert text.startswith("head\n") and text.endswith("tail\n") and "old" not in text
    document.write_text("no marks")
    with pytest.raises(ValueError, match="has no lines"):
        write_tables(document, outcome().as_dict())


async def test_a_relay_has_its_own_source_address() -> None:
    """A relay's connections come from its source address, and it forwards every byte."""
    seen: list[str] = []

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.append(writer.get_extra_info("peername")[0])
        writer.write(await reader.readexactly(5))
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    relay = Relay(f"127.0.0.1:{server.sockets[0].getsockname()[1]}", "127.0.1.77")
    host, _, port = (await relay.start()).rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(b"hello")
    assert await reader.readexactly(5) == b"hello"
    writer.close()
    await relay.stop()
    server.close()
    assert seen == ["127.0.1.77"]


def test_every_kind_has_one_sentence() -> None:
    """Every kind of attack has a description."""
    assert all(kind.attack.__doc__ for kind in KINDS.values())


@pytest.mark.long
async def test_a_short_campaign(tmp_path: Path) -> None:
    """All attacks at once cause no failed honest call, restart, view change or internal error."""
    found = await run(tmp_path, SHORT, Console(quiet=True))
    for view, stall in found.observation.excuses.items():
        print(f"not judged: view {view} began while the machine stalled: {stall}")
    assert found.broken() == []
