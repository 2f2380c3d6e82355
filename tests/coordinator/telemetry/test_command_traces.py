"""Traces over real processes: client, coordinator and services, read from the files they wrote."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from coordinator.mux import types as mux_types
from tests.processes.processes import short_directory
from tests.viewstamp.telemetry.spans_for_tests import ToldSpan, read_spans
from viewstamp.api.common.v1.common_pb2 import Identifier
from viewstamp.api.snapshots.v1 import snapshots_service_pb2 as snapshots
from viewstamp.api.streams.v1 import streams_service_pb2 as streams
from viewstamp.api.users.v1 import users_service_pb2 as users
from viewstamp.client import Client, connect
from viewstamp.cluster import LocalCluster
from viewstamp.errors import Refusal
from viewstamp.routing import SERVICE_NAMES
from viewstamp.telemetry.current import make_current
from viewstamp.telemetry.sampling import TraceContext
from viewstamp.telemetry.settings import Telemetry, TelemetrySettings

CLIENT, COORDINATOR = "viewstamp-client", "viewstamp-coordinator"
INTERNAL, SERVER, CLIENT_KIND = 1, 2, 3
STEPS = ("queue", "journal", "replicate", "commit", "apply")
STREAMS = "StreamsService/"
LOGIN = "UsersService/Login"
DOWNLOAD = "SnapshotsService/DownloadSnapshot"
TIMEOUT_S, POLL_S = 60, 0.05
PASSWORD = "a-password-of-the-tests"
STARTING = ("start", "open", "connect", "recover")
SECTIONS = tuple(stage.name.lower() for stage in mux_types.STAGES)

# A span without its ids: service, name, kind, and what stands above it.
Shape = tuple[str, str, int, str]


class Recorded(NamedTuple):
    """The traces of a cluster's short life."""

    spans: list[ToldSpan]
    secrets: list[str]

    def trace(self, name: str) -> list[ToldSpan]:
        """Return the spans of the only trace whose root has this name."""
        (root,) = [span for span in self.spans if span.name == name and not span.parent_id]
        return [span for span in self.spans if span.trace_id == root.trace_id]


def shape(trace: Iterable[ToldSpan]) -> list[Shape]:
    """Return a trace as services, names, kinds and parents."""
    trace = list(trace)
    names = {span.span_id: f"{span.service}: {span.name}" for span in trace}
    assert len(names) == len(trace), "two spans have one id"
    return sorted(
        (span.service, span.name, span.kind, names.get(span.parent_id, span.parent_id))
        for span in trace
    )


def expected(name: str, *stages: str) -> list[Shape]:
    """Return the trace of a command that visits these stages."""
    server = f"{COORDINATOR}: {name}"
    spans = [
        (CLIENT, name, CLIENT_KIND, ""),
        (COORDINATOR, name, SERVER, f"{CLIENT}: {name}"),
        *((COORDINATOR, step, INTERNAL, server) for step in STEPS),
    ]
    for stage in stages:
        service = "viewstamp-" + stage.replace("_", "-")
        above = f"{COORDINATOR}: stage {stage}"
        spans.append((COORDINATOR, f"stage {stage}", CLIENT_KIND, server))
        spans.append((service, f"apply {stage}", SERVER, above))
    return sorted(spans)


@asynccontextmanager
async def running(directory: Path, client_ratio: float, ratio: float) -> AsyncIterator[Client]:
    """Yield a client of a new cluster; both write their traces to `directory`/telemetry."""
    target = directory / "telemetry"
    settings = TelemetrySettings(target, ratio)
    async with LocalCluster(directory / "data", "127.0.0.1:0", telemetry=settings) as cluster:
        telemetry = Telemetry("client", TelemetrySettings(target, client_ratio))
        password = cluster.root_password_path.read_text().strip()
        try:
            async with await connect(
                cluster.address, username="root", password=password, telemetry=telemetry
            ) as client:
                yield client
        finally:
            telemetry.close()


async def until_written(directory: Path, name: str) -> None:
    """Wait until a file has a span of this name."""
    while name not in {span.name for span in read_spans(directory)}:
        await asyncio.to_thread(time.sleep, POLL_S)


async def live(directory: Path) -> Recorded:
    """Call a few methods, all of them sampled, and make a snapshot."""
    async with running(directory, 1.0, 0.0) as client:
        await client.call(streams.CreateStreamRequest(name="secret-name"))
        await client.batch(
            streams.CreateTopicRequest(stream=Identifier(name="secret-name"), name=f"t{number}")
            for number in range(3)
        )
        await asyncio.gather(
            *(
                client.call(
                    streams.CreatePartitionsRequest(
                        stream=Identifier(name="secret-name"),
                        topic=Identifier(name=f"t{number}"),
                        partitions_count=1,
                    )
                )
                for number in range(3)
            )
        )
        await client.groups.create("secret-name", "t1", "readers")
        with pytest.raises(Refusal, match="already"):
            await client.groups.create("secret-name", "t1", "readers")
        await client.call(streams.GetStreamRequest(stream=Identifier(name="secret-name")))
        await client.call(users.CreateUserRequest(username="somebody", password=PASSWORD))
        token = await client.call(users.CreatePersonalAccessTokenRequest(name="a token"))
        await client.snapshots.create()
        await until_written(directory / "telemetry", "snapshot")
        async for _ in client.stream(snapshots.DownloadSnapshotRequest()):
            pass
        with pytest.raises(Refusal, match="99"):
            async for _ in client.stream(snapshots.DownloadSnapshotRequest(generation=99)):
                pass
    password = (directory / "data" / "root_password").read_text().strip()
    key = (directory / "data" / "cluster.key").read_text().strip()
    secrets = [PASSWORD, password, key, str(token.token), "secret-name"]
    return Recorded(read_spans(directory / "telemetry"), secrets)


# One worker of pytest runs all of them, since they share a cluster.
pytestmark = pytest.mark.xdist_group("command-traces")


@pytest.fixture(scope="module")
def recorded() -> Any:
    """The traces of one cluster in which every call was sampled."""
    with short_directory() as directory:
        yield asyncio.run(asyncio.wait_for(live(directory), TIMEOUT_S))


def test_stream_command(recorded: Recorded) -> None:
    """A command of one domain has exactly its steps, one stage, and that stage's apply."""
    name = STREAMS + "CreateStream"
    assert shape(recorded.trace(name)) == expected(name, "streams")


def test_command_of_two_stages(recorded: Recorded) -> None:
    """A command on a group visits streams, which resolves it, then its own stage."""
    name = "ConsumerGroupsService/CreateConsumerGroup"
    roots = [span for span in recorded.spans if span.name == name and not span.parent_id]
    for root in roots:
        trace = [span for span in recorded.spans if span.trace_id == root.trace_id]
        assert shape(trace) == expected(name, "streams", "consumer_groups")
    outcomes = [root.attributes["viewstamp.outcome"] for root in roots]
    assert outcomes == ["ok", "GROUP_EXISTS"]
    assert roots[1].attributes["viewstamp.reason"] == "GROUP_EXISTS"
    assert roots[1].status == 0, "a name that is taken is no error of the cluster"


def test_batch_is_one_call(recorded: Recorded) -> None:
    """A client's batch has one trace, with the number of its commands."""
    name = STREAMS + "CreateTopic"
    trace = recorded.trace(name)
    assert shape(trace) == expected(name, "streams")
    for span in trace:
        if span.name == name:
            assert (
                span.attributes["viewstamp.commands"],
                span.attributes["viewstamp.refused"],
            ) == (
                3,
                0,
            )


def test_calls_sent_together_have_a_trace_each(recorded: Recorded) -> None:
    """Calls that travel in one message are sampled together, and told apart in every process."""
    name = STREAMS + "CreatePartitions"
    roots = [span for span in recorded.spans if span.name == name and not span.parent_id]
    revisions, ops = [], set()
    for root in roots:
        trace = [span for span in recorded.spans if span.trace_id == root.trace_id]
        # Groups hear of new partitions.
        assert shape(trace) == expected(name, "streams", "consumer_groups")
        own = {span.attributes.get("viewstamp.revision") for span in trace} - {None}
        assert own == {root.attributes["viewstamp.revision"]}
        revisions.append(root.attributes["viewstamp.revision"])
        ops |= {span.attributes["viewstamp.op"] for span in trace}
    first = min(revisions)
    assert sorted(revisions) == [first, first + 1, first + 2]
    assert len(ops) < len(roots), "a request of the client has half of the calls that wait"


def test_read_has_two_spans(recorded: Recorded) -> None:
    """A read is traced in client and coordinator, and not in the log's steps."""
    name = STREAMS + "GetStream"
    assert shape(recorded.trace(name)) == [
        (CLIENT, name, CLIENT_KIND, ""),
        (COORDINATOR, name, SERVER, f"{CLIENT}: {name}"),
    ]


def test_coming_in_is_traced(recorded: Recorded) -> None:
    """The login and registration before a client's first call have their spans, too."""
    assert shape(recorded.trace(LOGIN)) == [
        (CLIENT, LOGIN, CLIENT_KIND, ""),
        (COORDINATOR, LOGIN, SERVER, f"{CLIENT}: {LOGIN}"),
    ]
    register = "SessionsService/RegisterSession"
    assert shape(recorded.trace(register)) == expected(register)


def test_downloads_are_traced(recorded: Recorded) -> None:
    """An answer in many messages is one call, from the request to the last message."""
    name = DOWNLOAD
    roots = [span for span in recorded.spans if span.name == name and not span.parent_id]
    outcomes = [root.attributes["viewstamp.outcome"] for root in roots]
    assert outcomes == ["ok", "SNAPSHOT_NOT_FOUND"]
    for root in roots:
        trace = [span for span in recorded.spans if span.trace_id == root.trace_id]
        assert shape(trace) == [
            (CLIENT, name, CLIENT_KIND, ""),
            (COORDINATOR, name, SERVER, f"{CLIENT}: {name}"),
        ]
        (server,) = [span for span in trace if span.kind == SERVER]
        assert server.attributes["viewstamp.outcome"] == root.attributes["viewstamp.outcome"]


def test_steps_follow_each_other(recorded: Recorded) -> None:
    """Each step begins where its predecessor ended, within the SERVER span, and names its place."""
    trace = {span.name: span for span in recorded.trace(STREAMS + "CreateStream")}
    steps = [trace[name] for name in ("queue", "journal", "replicate", "commit")]
    for before, after in itertools.pairwise(steps):
        assert before.start_ns <= before.end_ns == after.start_ns
    assert trace["replicate"].start_ns == trace["replicate"].end_ns
    assert trace["stage streams"].end_ns <= trace["apply"].start_ns <= trace["apply"].end_ns
    (server,) = [
        span
        for span in recorded.trace(STREAMS + "CreateStream")
        if span.kind == SERVER and span.service == COORDINATOR
    ]
    assert server.start_ns <= steps[0].start_ns and trace["apply"].end_ns <= server.end_ns
    places = {
        (span.attributes["viewstamp.op"], span.attributes["viewstamp.revision"])
        for span in (*steps, trace["apply"], trace["stage streams"], server)
    }
    assert len(places) == 1
    assert server.attributes["viewstamp.user_id"] == 0
    assert server.attributes["rpc.method"] == "CreateStream"


def test_prepares_link_their_commands(recorded: Recorded) -> None:
    """Every prepare has a span of its own, with a link to the SERVER span of each call in it."""
    prepares = [span for span in recorded.spans if span.name == "prepare"]
    ops = [span.attributes["viewstamp.op"] for span in prepares]
    assert ops == sorted(set(ops)) and not any(span.parent_id for span in prepares)
    linked = {link: span.attributes["viewstamp.op"] for span in prepares for link in span.links}
    sampled = {
        (span.trace_id, span.span_id): span.attributes["viewstamp.op"]
        for span in recorded.spans
        if span.service == COORDINATOR
        and span.kind == SERVER
        and span.name not in (STREAMS + "GetStream", LOGIN, DOWNLOAD)
    }
    assert linked == sampled


def test_snapshot_has_its_trace(recorded: Recorded) -> None:
    """A snapshot has cut, sections, manifest, decision and adoption below one root."""
    trace = recorded.trace("snapshot")
    above = f"{COORDINATOR}: snapshot"
    children = ("cut", "manifest", "decide", "adopt", *(f"section {name}" for name in SECTIONS))
    assert shape(trace) == sorted(
        [
            (COORDINATOR, "snapshot", INTERNAL, ""),
            *((COORDINATOR, name, INTERNAL, above) for name in children),
        ]
    )
    assert {span.attributes["viewstamp.generation"] for span in trace} == {1}
    (root,) = [span for span in trace if not span.parent_id]
    sections = [span for span in trace if span.name.startswith("section")]
    for what in ("viewstamp.bytes", "viewstamp.entities"):
        assert root.attributes[what] == sum(span.attributes[what] for span in sections) > 0


def test_starts_have_their_traces(recorded: Recorded) -> None:
    """Every process reports how long its start took, and the coordinator each step of it."""
    roots = [span for span in recorded.spans if span.name == "start"]
    services = [f"viewstamp-{name.replace('_', '-')}" for name in SERVICE_NAMES]
    assert sorted(span.service for span in roots) == sorted([COORDINATOR, *services])
    (root,) = [span for span in roots if span.service == COORDINATOR]
    trace = [span for span in recorded.spans if span.trace_id == root.trace_id]
    above = f"{COORDINATOR}: start"
    assert shape(trace) == sorted(
        (COORDINATOR, name, INTERNAL, "" if name == "start" else above)
        for name in ("start", "open", "connect", "recover")
    )
    ends = {span.name: (span.start_ns, span.end_ns) for span in trace}
    assert ends["start"] == (ends["open"][0], ends["recover"][1])
    assert ends["open"][1] == ends["connect"][0] and ends["connect"][1] == ends["recover"][0]


def test_no_secret_is_in_any_span(recorded: Recorded) -> None:
    """No span contains passwords, tokens, the cluster's key or names of entities."""
    text = repr(recorded.spans)
    assert "CreatePersonalAccessToken" in text and "CreateUser" in text
    for secret in recorded.secrets:
        assert secret and secret not in text


async def test_unsampled_calls_leave_nothing() -> None:
    """Without sampling there are no spans of commands, and one current span samples its calls."""
    with short_directory() as directory:
        async with running(directory, 0.0, 0.0) as client:
            await client.call(streams.CreateStreamRequest(name="quiet"))
            make_current(TraceContext(32 * "c", 16 * "d"))
            await client.call(streams.CreateStreamRequest(name="followed"))
            make_current(None)
        spans = read_spans(directory / "telemetry")
    calls = [span for span in spans if span.name not in ("prepare", "view change", *STARTING)]
    assert {span.trace_id for span in calls} == {32 * "c"}
    (root,) = [span for span in calls if span.service == CLIENT]
    assert root.parent_id == 16 * "d"
    assert sum(len(span.links) for span in spans if span.name == "prepare") == 1


@pytest.mark.long
async def test_replay_leaves_nothing() -> None:
    """A coordinator and a service that are restarted replay sampled commands without spans."""
    async with asyncio.timeout(TIMEOUT_S):
        await restarted()


async def restarted() -> None:
    """Kill a service, stop the cluster, start it again, and read the traces."""
    with short_directory() as directory:
        target = directory / "telemetry"
        settings = TelemetrySettings(target, 1.0)
        cluster = LocalCluster(directory / "data", "127.0.0.1:0", telemetry=settings)
        async with cluster:
            password = cluster.root_password_path.read_text().strip()
            async with await connect(cluster.address, username="root", password=password) as client:
                await client.call(streams.CreateStreamRequest(name="once"))
                await until_written(target, "apply streams")
                cluster.kill("streams")
                await client.call(streams.GetStreamRequest(stream=Identifier(name="once")))
        before = read_spans(target)
        async with cluster:
            pass
        after = read_spans(target)
    applied = [span for span in before if span.name == "apply streams"]
    assert len(applied) == 1, "the only command on streams was applied once, and replayed"
    known = {span.span_id for span in before}
    assert {span.name for span in after if span.span_id not in known} <= {"view change", *STARTING}
