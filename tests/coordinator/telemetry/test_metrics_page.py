"""The Prometheus page parses, and agrees with its documentation."""

from __future__ import annotations

import asyncio
import math
import os
import re
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Iterable
from functools import partial
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from prometheus_client.parser import text_string_to_metric_families

from coordinator.app import gauges as gauges_module
from coordinator.app.gauges import gauges, gauges_of_disks
from coordinator.mux import types as mux_types
from coordinator.replica.batcher import PrepareBatch
from coordinator.replica.cluster_clock import ClockView
from coordinator.scrub.remedies import DamagedPart
from coordinator.scrub.tally import ScrubTally
from coordinator.telemetry.archive import archive_families
from coordinator.telemetry.metrics import ReplicaMetrics, gauge_families
from coordinator.telemetry.past import past_families
from coordinator.telemetry.watch import ReplicaWatch
from services.runtime.encryption import families_of
from services.runtime.watch import ApplyWatch
from tests.viewstamp.telemetry.spans_for_tests import Kept
from viewstamp.api.cluster.v1 import cluster_service_pb2 as cluster_pb2
from viewstamp.api.domain.v1 import domain_service_pb2 as pb
from viewstamp.api.errors.v1 import errors_pb2
from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.api.log.v1 import log_pb2
from viewstamp.certificates.pem_files import Certificates, Expiry
from viewstamp.routing import SERVICE_NAMES
from viewstamp.telemetry.metrics import LATENCY_BOUNDS_NS, NANOSECONDS_PER_SECOND, MetricsPage
from viewstamp.telemetry.sampling import Sampler
from viewstamp.telemetry.settings import Telemetry, TelemetrySettings
from viewstamp.telemetry.spans import Recorder

DOCUMENTATION = Path(__file__).parents[3] / "docs" / "telemetry.md"


def replica_metrics() -> ReplicaMetrics:
    """Return a replica's counters."""
    return ReplicaMetrics(lambda code: f"Method{code}")


def replica_gauges() -> Iterable[Any]:
    """Return a replica's gauges, with stand-ins for their sources."""
    progress = SimpleNamespace(
        op=7, committed_op=7, applied_op=6, applied_revision=9, view=1, status=None, primary=0
    )
    client = SimpleNamespace(item_log_bytes=5, connected=True, restarts=2)
    stages: dict[Any, Any] = dict.fromkeys(mux_types.SERVICE_STAGES, client)
    sources: Any = SimpleNamespace(
        driver=SimpleNamespace(progress=progress, intake=SimpleNamespace(batcher=[1, 2, 3])),
        clients=stages,
        alarms=SimpleNamespace(all=lambda: [SimpleNamespace(kind=1)]),
        mux=SimpleNamespace(
            sessions=[1],
            catalog=SimpleNamespace(latest_completed=lambda: SimpleNamespace(decided_at=8_000_000)),
        ),
        scrubber=SimpleNamespace(tally=ScrubTally(standing=Counter({DamagedPart.FILE: 2}))),
        orchestrator=SimpleNamespace(adopted_generation=4, current_generation=lambda: 5),
        links=SimpleNamespace(
            refused_hellos=lambda: {"other_cluster": 3},
            silences_ms=lambda: {1: 250},
            sent_snapshot_bytes=lambda: {1: 4_096},
        ),
        certificates=SimpleNamespace(
            expiries=[Expiry("--tls-certificate", Path("tls.crt"), 1, 86_400, 86_400)]
        ),
        watches=lambda: 2,
        replica_id=0,
        clock=lambda: ClockView(0, {0: 0, 1: -2_500_000}, True),
        peers=lambda: [cluster_pb2.Replica(replica_id=1, commit=9, applied=5)],
        directories={"data": Path("/")},
    )
    return gauge_families(gauges(sources))


def past_numbers() -> Iterable[Any]:
    """Return what is counted of reads of the past, of which some were made."""
    counts = SimpleNamespace(
        builds={"ok": 2, "given_up": 1},
        questions={"ok": 3, "REVISION_COMPACTED": 4},
        built_s=12.5,
        replayed_revisions=700,
        waiting=5,
        is_building=True,
    )
    return past_families(counts)


def archive_numbers() -> Iterable[Any]:
    """Return what is counted of shipping to an archive that was read."""
    counts: Any = SimpleNamespace(
        lag=SimpleNamespace(ops=4),
        lag_ms=1_500,
        archived_op=12,
        is_archive_known=True,
        shipped_bytes=700,
        failures=1,
        gaps=0,
    )
    return archive_families(counts)


def page_of(telemetry: Telemetry, *families: Any) -> dict[str, Any]:
    """Serve a page, fetch it over HTTP, and return its families by name."""
    address = telemetry.serve_metrics(families)
    try:
        with urllib.request.urlopen(f"http://{address}/metrics") as response:
            text = response.read().decode()
    finally:
        telemetry.close()
    found = {family.name: family for family in text_string_to_metric_families(text)}
    assert len(found) == text.count("# TYPE"), "a family stands there twice"
    return found


def metered() -> Telemetry:
    """Return telemetry with a page on any port."""
    return Telemetry("echo", TelemetrySettings(metrics_listen="127.0.0.1:0"))


def documented(heading: str) -> set[str]:
    """Return the metrics in the table under a heading of docs/telemetry.md."""
    section = DOCUMENTATION.read_text().split(f"### {heading}\n")[1].split("\n#")[0]
    return set(re.findall(r"^\| `((?:viewstamp|process)_\w+)", section, re.MULTILINE))


def told(families: dict[str, Any]) -> set[str]:
    """Return the names as a query uses them: counters end in `_total`."""
    return {name + ("_total" if one.type == "counter" else "") for name, one in families.items()}


def test_coordinator_tells_what_is_documented() -> None:
    """The coordinator's page has exactly the documented metrics."""
    families = page_of(
        metered(), replica_metrics().families, replica_gauges, past_numbers, archive_numbers
    )
    assert told(families) == documented("Every process") | documented("Coordinator")


def test_services_tell_what_is_documented() -> None:
    """A service's page has exactly the documented metrics; this one has TLS."""
    telemetry = metered()
    certificate = SimpleNamespace(expiries=(Expiry("--tls-certificate", Path(), 1, 2, 3),))
    expiries = partial(families_of, cast(Certificates, certificate))
    families = page_of(telemetry, ApplyWatch("echo", telemetry).families, expiries)
    assert told(families) == documented("Every process") | documented("Domain services")


def test_numbers_are_looked_up_when_asked() -> None:
    """Gauges show the current state, with their labels."""
    families = page_of(metered(), replica_gauges)
    assert families["viewstamp_queue_depth"].samples[0].value == 3
    assert families["viewstamp_watches"].samples[0].value == 2
    standing = families["viewstamp_scrub_standing"].samples
    assert {each.labels["part"] for each in standing if each.value == 2} == {"file"}
    assert families["viewstamp_snapshot_generation"].samples[0].value == 4
    assert families["viewstamp_snapshot_completed_timestamp_seconds"].samples[0].value == 8
    (lag,) = families["viewstamp_peer_lag_ops"].samples
    assert (lag.labels["replica"], lag.value) == ("1", 4)
    assert families["viewstamp_peer_silence_seconds"].samples[0].value == 0.25
    (sent,) = families["viewstamp_peer_snapshot_bytes"].samples
    assert (sent.labels["replica"], sent.value) == ("1", 4_096)
    offsets = families["viewstamp_clock_offset_seconds"].samples
    assert {one.labels["replica"]: one.value for one in offsets} == {"0": 0, "1": -2.5}
    free, size = (families[f"viewstamp_filesystem_{name}_bytes"] for name in ("free", "size"))
    assert 0 < free.samples[0].value <= size.samples[0].value
    (refused,) = families["viewstamp_refused_hellos"].samples
    assert (refused.labels["reason"], refused.value) == ("other_cluster", 3)
    assert families["viewstamp_snapshot_generation_newest"].samples[0].value == 5
    item_logs = families["viewstamp_item_log_bytes"].samples
    assert {sample.labels["stage"]: sample.value for sample in item_logs} == dict.fromkeys(
        SERVICE_NAMES, 5.0
    )
    (alarm,) = families["viewstamp_alarms"].samples
    assert (alarm.labels["kind"], alarm.value) == ("ALARM_KIND_NO_SPACE", 1.0)
    (expiry,) = families["viewstamp_certificate_expiry_timestamp_seconds"].samples
    assert (expiry.labels["flag"], expiry.value) == ("--tls-certificate", 86_400.0)


def test_a_directory_that_cannot_be_asked(tmp_path: Path) -> None:
    """A file system that is away costs its two numbers, and not the page."""
    directories = {"data": tmp_path / "none", "copy-0": tmp_path}
    for family in gauge_families(gauges_of_disks(directories)):
        values = {sample.labels["directory"]: sample.value for sample in family.samples}
        assert math.isnan(values["data"])
        assert values["copy-0"] > 0


def test_reads_of_the_past_are_counted() -> None:
    """Builds and questions are told by outcome, with their times and what they replayed."""
    families = page_of(metered(), past_numbers)
    told_of = {
        (sample.name.removeprefix("viewstamp_past_"), *sample.labels.values()): sample.value
        for family in families.values()
        for sample in family.samples
        if sample.name.startswith("viewstamp_past_")
    }
    assert told_of == {
        ("builds_total", "ok"): 2,
        ("builds_total", "given_up"): 1,
        ("questions_total", "ok"): 3,
        ("questions_total", "REVISION_COMPACTED"): 4,
        ("build_seconds_total",): 12.5,
        ("replayed_revisions_total",): 700,
        ("questions_waiting",): 5,
        ("building",): 1,
    }


def test_a_file_system_that_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One request waits for a file system that hangs, and those after it give NaN."""
    asked, ends = threading.Event(), threading.Event()

    def hang(path: Path) -> None:
        asked.set()
        ends.wait()
        raise OSError

    monkeypatch.setattr(gauges_module, "ROOM_TIMEOUT_S", 0.01)
    monkeypatch.setattr(os, "statvfs", hang)
    found = gauges_of_disks({"copy-0": tmp_path})
    first = threading.Thread(target=lambda: list(gauge_families(found)))
    first.start()
    try:
        assert asked.wait(60)
        values = [sample.value for one in gauge_families(found) for sample in one.samples]
    finally:
        ends.set()
        first.join()
    assert len(values) == 2 and all(map(math.isnan, values))


def test_a_repeated_reply_with_fewer_spans_is_counted() -> None:
    """An answer from another request's reply, kept without a fingerprint, counts."""
    metrics = replica_metrics()
    span = log_pb2.LoggedSpan(code=200, count=3)
    requests = [log_pb2.LoggedRequest(spans=[span, span])]
    replies = (mux_types.RequestReply(1, 1, 0, 5, 9, (mux_types.SpanReply(b""),)),)
    batch = PrepareBatch(b"12345", 6, requests, [])
    metrics.applied(batch, mux_types.Applied(5, 0, 13, replies, ()), 1_000_000)
    (commands,) = (
        family.samples
        for name, family in page_of(metered(), metrics.families).items()
        if name == "viewstamp_commands"
    )
    assert [sample.value for sample in commands if sample.labels["outcome"] == "ok"] == [6.0]


def test_applied_commands_are_counted_by_outcome() -> None:
    """Each command counts once: as answered, by its own refusal, or by its request's."""
    metrics = replica_metrics()
    error = errors_pb2.Error(reason=Reason.REASON_STREAM_EXISTS).SerializeToString()
    requests = [
        log_pb2.LoggedRequest(spans=[log_pb2.LoggedSpan(code=code, count=count)])
        for code, count in ((200, 3), (201, 2))
    ]
    spans = (mux_types.SpanReply(b"", (mux_types.IndexedError(1, error),)),)
    replies = (
        mux_types.RequestReply(1, 1, 0, 5, 9, spans),
        mux_types.RequestReply(2, 1, 0, 5, 12, (), error),
    )
    batch = PrepareBatch(b"12345", 5, requests, [])
    metrics.applied(batch, mux_types.Applied(5, 0, 13, replies, ()), 1_000_000)
    families = page_of(metered(), metrics.families)
    commands = {
        (sample.labels["rpc"], sample.labels["outcome"]): sample.value
        for sample in families["viewstamp_commands"].samples
    }
    assert commands == {
        ("Method200", "ok"): 2,
        ("Method200", "STREAM_EXISTS"): 1,
        ("Method201", "STREAM_EXISTS"): 2,
    }
    assert families["viewstamp_prepare_bytes"].samples[0].value == 5


@pytest.mark.parametrize("is_recorded", [True, False])
@pytest.mark.parametrize("is_durable", [True, False])
def test_times_of_a_prepare_are_counted(
    is_recorded: bool, is_durable: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each step of a prepare counts once, at its stage, whether spans are recorded or not.

    Each look at the clock adds a second to it. An entry that is applied before it is durable here,
    because others were faster, has no time of a sync.
    """
    seconds = count(1_700_000_000)
    monkeypatch.setattr(time, "time_ns", lambda: next(seconds) * NANOSECONDS_PER_SECOND)
    metrics = replica_metrics()
    recorder = Recorder([Kept()]) if is_recorded else None
    watch = ReplicaWatch(recorder, metrics, Sampler(1.0), is_alone=lambda: False)
    header = SimpleNamespace(op=5, view=0, first_revision=9, command_count=1, size=1)
    prepares: list[Any] = [SimpleNamespace(op=5, header=header)]
    watch.persisting(prepares, lambda _: PrepareBatch(b"12345", 1, [], []))
    if is_durable:
        watch.persisted(prepares)
    watch.committed(5)
    watch.handed_over(5)
    for sequence, stage in ((1, mux_types.Stage.STREAMS), (2, mux_types.Stage.CONSUMER_GROUPS)):
        assert not watch.sent(stage, pb.Batch(sequence=sequence, op=5))
        watch.answered(stage, sequence)
    watch.applied(mux_types.Applied(5, 0, 9, (), ()))
    monkeypatch.undo()
    told = {
        (sample.name.removeprefix("viewstamp_"), sample.labels.get("stage", "")): sample.value
        for family in page_of(metered(), metrics.families).values()
        for sample in family.samples
        if sample.name.endswith(("_seconds_sum", "_seconds_count")) and sample.value
    }
    expected = {
        ("prepare_seconds_count", ""): 1,
        ("prepare_seconds_sum", ""): 7 + is_durable,
        ("stage_seconds_count", "streams"): 1,
        ("stage_seconds_sum", "streams"): 1,
        ("stage_seconds_count", "consumer_groups"): 1,
        ("stage_seconds_sum", "consumer_groups"): 1,
    }
    if is_durable:
        expected |= {("journal_sync_seconds_count", ""): 1, ("journal_sync_seconds_sum", ""): 1}
    assert told == expected


def test_histogram_buckets_are_cumulative() -> None:
    """A duration counts in its bucket and all above; the bound itself belongs to the bucket."""
    metrics = replica_metrics()
    for duration_ns in (LATENCY_BOUNDS_NS[0], LATENCY_BOUNDS_NS[0] + 1, 10**12):
        metrics.journal_sync.observe(duration_ns)
    family = page_of(metered(), metrics.families)["viewstamp_journal_sync_seconds"]
    buckets = [sample.value for sample in family.samples if sample.name.endswith("_bucket")]
    assert buckets == [1.0] + [2.0] * (len(LATENCY_BOUNDS_NS) - 1) + [3.0]
    (count,) = [sample.value for sample in family.samples if sample.name.endswith("_count")]
    assert count == 3


def test_service_counts_batches_and_commands() -> None:
    """A batch counts once, its commands by their number."""
    telemetry = metered()
    watch = ApplyWatch("echo", telemetry)
    items = [pb.Item(command=pb.CommandItem(count=3)), pb.Item(query=pb.QueryItem(count=9))]
    batch = pb.Batch(sequence=1, items=items)
    watch.end(batch, watch.begin(batch))
    families = page_of(telemetry, watch.families)
    assert families["viewstamp_applied_commands"].samples[0].value == 3
    assert families["viewstamp_batches"].samples[0].value == 1


@pytest.mark.parametrize("listen", ["9464", "127.0.0.1", ":9464", "127.0.0.1:http"])
def test_address_is_checked(listen: str) -> None:
    """A value that is not HOST:PORT is refused with its flag."""
    with pytest.raises(ValueError, match=r"--metrics-listen .* give HOST:PORT"):
        MetricsPage(listen, [])


async def test_taken_port_is_refused() -> None:
    """A port that another process has is refused with its flag."""
    server = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server:
        with pytest.raises(OSError, match=f"--metrics-listen 127.0.0.1:{port}: cannot be bound"):
            MetricsPage(f"127.0.0.1:{port}", [])
