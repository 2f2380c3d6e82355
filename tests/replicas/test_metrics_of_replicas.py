"""The metrics pages of a cluster that works, as Prometheus reads them."""

from __future__ import annotations

import asyncio
import json
import re
import urllib.request
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from tests.deploy.promtool import documented_metrics, promtool
from viewstamp.client import Client, connect
from viewstamp.cluster import LocalReplicas
from viewstamp.errors import Refusal
from viewstamp.telemetry.settings import TelemetrySettings

pytestmark = pytest.mark.long

REPLICAS: Final = 3
TOPICS: Final = 60
SETTLE_TIMEOUT_S: Final = 60.0
OPEN_METRICS: Final = "application/openmetrics-text; version=1.0.0"
# A family is declared under its name in queries, but for counters in OpenMetrics.
DECLARED: Final = re.compile(r"^# TYPE (\w+) ", re.MULTILINE)


@asynccontextmanager
async def working(directory: Path) -> AsyncIterator[LocalReplicas]:
    """Run replicas with an archive; each process serves a page and traces every command."""
    telemetry = TelemetrySettings(directory / "telemetry", 1.0, metrics_listen="127.0.0.1:0")
    replicas = LocalReplicas(
        directory / "data",
        REPLICAS,
        "127.0.0.1:0",
        telemetry=telemetry,
        service_arguments=["--metrics-listen=127.0.0.1:0"],
        coordinator_arguments=[f"--archive-to={directory / 'archive'}", "--archive-piece-ms=0"],
    )
    async with replicas:
        password = replicas.root_password_path.read_text().strip()
        async with await connect(replicas.addresses, username="root", password=password) as client:
            await load(client)
            with pytest.raises(Refusal, match="password is wrong"):
                await connect(replicas.addresses, username="root", password="wrong")
            yield replicas


async def load(client: Client) -> None:
    """Change something in every domain, be refused, read, and take a snapshot."""
    await client.streams.create("shop")
    for number in range(TOPICS):
        await client.topics.create("shop", f"orders-{number}")
    await client.groups.create("shop", "orders-0", "billing")
    refused = await asyncio.gather(client.streams.create("shop"), return_exceptions=True)
    assert isinstance(refused[0], Exception)
    assert len([topic async for topic in client.topics.list("shop")]) == TOPICS
    await client.snapshots.create()


def pages(replicas: LocalReplicas) -> dict[str, str]:
    """Return the address of the page of each process, by replica and name."""
    found = {}
    for number, replica in enumerate(replicas.replicas):
        for name in replica.supervised:
            log = replica.log_path(name).read_text().splitlines()
            lines = (json.loads(line) for line in log if "metrics are served" in line)
            found[f"{number} {name}"] = next(lines)["fields"]["address"]
    return found


def fetched(address: str, accept: str = "text/plain") -> str:
    """Return the page at an address in the format that is accepted."""
    request = urllib.request.Request(f"http://{address}/metrics", headers={"Accept": accept})
    with urllib.request.urlopen(request) as response:
        return str(response.read().decode())


def exemplars(text: str) -> Iterator[tuple[str, Any]]:
    """Yield each histogram that has an exemplar, and the exemplar."""
    for family in text_string_to_metric_families(text):  # type: ignore[no-untyped-call]
        for sample in family.samples:
            if sample.exemplar is not None:
                yield family.name, sample.exemplar


def traces_in(directory: Path) -> set[str]:
    """Return the ids of all traces that were written."""
    texts = (file.read_text() for file in directory.rglob("traces*.jsonl"))
    return {id_ for text in texts for id_ in re.findall(r'"traceId":"([0-9a-f]{32})"', text)}


async def until_written(directory: Path, wanted: set[str]) -> None:
    """Wait until traces are in the files; a thread writes them."""
    async with asyncio.timeout(SETTLE_TIMEOUT_S):
        while True:
            if wanted <= traces_in(directory):
                return
            await asyncio.sleep(0.2)


async def until_archived(addresses: Iterable[str]) -> None:
    """Wait until the primary's page says how far the archive is."""
    async with asyncio.timeout(SETTLE_TIMEOUT_S):
        while True:
            if any("viewstamp_archive_op " in fetched(address) for address in addresses):
                return
            await asyncio.sleep(0.2)


async def test_pages_of_a_working_cluster(tmp_path: Path) -> None:
    """Promtool objects to no page, the pages have what is documented, exemplars lead to traces."""
    async with working(tmp_path) as replicas:
        addresses = pages(replicas)
        assert len(addresses) == REPLICAS * 4
        await until_archived(addresses.values())
        texts = {name: fetched(address) for name, address in addresses.items()}
        for name, text in texts.items():
            judged = promtool("check", "metrics", text=text)
            assert (judged.returncode, judged.stdout + judged.stderr) == (0, ""), name
        declared = {each for text in texts.values() for each in DECLARED.findall(text)}
        assert declared == documented_metrics()

        assert sum("viewstamp_primary 1.0" in text for text in texts.values()) == 1
        leads = next(text for text in texts.values() if "viewstamp_primary 1.0" in text)
        for said in (
            f'viewstamp_commands_total{{outcome="ok",rpc="CreateTopic"}} {TOPICS}.0',
            f'viewstamp_call_seconds_count{{code="OK",rpc="CreateTopic"}} {TOPICS}.0',
            'viewstamp_call_seconds_count{code="ALREADY_EXISTS",rpc="CreateStream"} 1.0',
            'viewstamp_peer_lag_ops{replica="',
            'viewstamp_clock_offset_seconds{replica="',
            'viewstamp_filesystem_free_bytes{directory="data"}',
        ):
            assert said in leads

        seen = [text for text in texts.values() if "viewstamp_primary" in text]
        for said in (
            'viewstamp_logins_total{outcome="INVALID_CREDENTIALS"} 1.0',
            'viewstamp_call_seconds_count{code="UNAUTHENTICATED",rpc="Login"} 1.0',
        ):
            assert sum(said in text for text in seen) == 1, said

        rich = [fetched(address, OPEN_METRICS) for address in addresses.values()]
        found = [each for text in rich for each in exemplars(text)]
        assert {name for name, _ in found} == {
            *("viewstamp_prepare_seconds", "viewstamp_journal_sync_seconds"),
            *("viewstamp_stage_seconds", "viewstamp_apply_seconds"),
        }
        wanted = {exemplar.labels["trace_id"] for _, exemplar in found}
        await until_written(tmp_path / "telemetry", wanted)


def test_promtool_objects() -> None:
    """A counter without `_total` is told: the check can fail."""
    page = "# HELP requests Requests.\n# TYPE requests counter\nrequests 1\n"
    judged = promtool("check", "metrics", text=page)
    assert judged.returncode != 0
    assert 'counter metrics should have "_total" suffix' in judged.stdout + judged.stderr
