"""`viewstamp top`: rates between readings, the worst lags, and what it shows without an answer."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import signal
import subprocess
import sys
from collections.abc import AsyncIterator

import pytest
import yaml

import viewstamp
from tests.processes.processes import ReplicaProcesses
from tests.viewstamp.cli.conftest import CommandLine
from tests.viewstamp.client.fake_gateway import PASSWORD, FakeGateway
from viewstamp import Client
from viewstamp.cli.measuring import ClusterMeter
from viewstamp.metering import group_lags

QUICK = ("--interval", "0.1")


@pytest.fixture
async def gateway() -> AsyncIterator[FakeGateway]:
    """A running gateway."""
    async with FakeGateway() as running:
        yield running


@pytest.fixture
async def client(gateway: FakeGateway) -> AsyncIterator[Client]:
    """A connected client."""
    async with await viewstamp.connect(
        gateway.address, username="root", password=PASSWORD
    ) as connected:
        yield connected


async def test_rates_are_differences_between_readings(client: Client) -> None:
    """Commands in a second come from revisions and the clock; the first reading has no rate."""
    now_s = 100.0
    meter = ClusterMeter(client, 0, clock_s=lambda: now_s)
    first = await meter.read()
    assert (first["commands_per_s"], first["entries_per_s"]) == (None, None)
    for name in ("a", "b", "c"):
        await client.streams.create(name)
    now_s += 2.0
    second = await meter.read()
    assert second["revision"] - first["revision"] == 3
    assert second["commands_per_s"] == 1.5
    assert (await meter.read())["commands_per_s"] is None  # no time has passed


async def test_without_an_answer_the_last_values_stay(gateway: FakeGateway, client: Client) -> None:
    """A cluster that does not answer is shown as it was, with the time of the first failure."""
    meter = ClusterMeter(client.within(0.05), 0)
    answered = await meter.read()
    assert answered["no_answer_since"] is None
    gateway.gate.clear()
    silent = await meter.read()
    again = await meter.read()
    assert silent["revision"] == answered["revision"]
    assert silent["no_answer_since"] == again["no_answer_since"] is not None
    assert "deadline" in silent["failure"]
    gateway.gate.set()
    assert (await ClusterMeter(client, 0).read())["no_answer_since"] is None


@pytest.fixture
def harbour(real: CommandLine, processes: ReplicaProcesses) -> CommandLine:
    """A command line at a cluster with three groups, of which each lags more than the last."""
    if real("stream", "get", "harbour").code:
        asyncio.run(fill(processes))
    return real


async def fill(processes: ReplicaProcesses) -> None:
    """Create three groups with a lag of 10, 20 and 30."""
    async with await viewstamp.connect(
        processes.address, username="root", password=processes.root_password()
    ) as client:
        await client.streams.create("harbour")
        topic = await client.topics.create("harbour", "ships", partitions_count=1)
        await client.topics.report_partition_ends("harbour", topic.topic_id, {0: 100})
        for name, offset in (("near", 90), ("middle", 80), ("far", 70)):
            await client.groups.create("harbour", "ships", name)
            await client.groups.commit_offsets("harbour", "ships", name, {0: offset})


def test_one_reading_is_printed_in_a_pipe(harbour: CommandLine) -> None:
    """In a pipe there is one plain page: replicas, rates, and the groups with the highest lag."""
    said = harbour("top", *QUICK, "--groups", "2")
    assert (said.code, said.err) == (0, "")
    lines = said.out.splitlines()
    assert lines[0].startswith("cluster ") and "commands 0/s" in lines[1]
    table = lines[lines.index("groups with the highest lag") + 2 :]
    assert [line.split()[:2] for line in table] == [
        ["harbour/ships/far", "30"],
        ["harbour/ships/middle", "20"],
    ]


def test_one_reading_is_a_document(harbour: CommandLine) -> None:
    """With --once, JSON is one line and YAML one document, with the same keys."""
    as_json = harbour("top", "--once", *QUICK, "--groups", "0", "--json")
    as_yaml = harbour("top", "--once", *QUICK, "--groups", "0", "-o", "yaml")
    assert json.loads(as_json.out).keys() == yaml.safe_load(as_yaml.out).keys()
    assert json.loads(as_json.out)["groups"] == []
    assert harbour("top", "-o", "name").code == 2


def test_the_search_for_groups_is_bounded(
    harbour: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No more groups are read, and no more topics looked at, than the limits say."""
    monkeypatch.setattr(group_lags, "GROUPS_READ_MAX", 1)
    found = json.loads(harbour("top", "--once", *QUICK, "--json").out)
    assert len(found["groups"]) <= 1
    monkeypatch.setattr(group_lags, "TOPICS_READ_MAX", 0)
    assert json.loads(harbour("top", "--once", *QUICK, "--json").out)["groups"] == []
    monkeypatch.undo()
    monkeypatch.setattr(group_lags, "STREAMS_READ_MAX", 0)
    assert json.loads(harbour("top", "--once", *QUICK, "--json").out)["groups"] == []


def started(line: CommandLine, *arguments: str, stdout: int) -> subprocess.Popen[bytes]:
    """Start `top` in a process of its own."""
    variables = {"XDG_CONFIG_HOME": str(line.home), "VIEWSTAMP_ADDRESS": line.address}
    return subprocess.Popen(
        [sys.executable, "-m", "viewstamp.cli", "top", *QUICK, *arguments],
        env={**os.environ, **variables, "TERM": "xterm", "COLUMNS": "100", "LINES": "40"},
        stdout=stdout,
    )


def test_lines_follow_until_ctrl_c(real: CommandLine) -> None:
    """With --json one line follows another, and Ctrl-C is the end."""
    with started(real, "--json", stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        first, second = (json.loads(process.stdout.readline()) for _ in range(2))
        process.send_signal(signal.SIGINT)
        process.stdout.read()
    assert process.returncode == 130
    assert first["commands_per_s"] is None and second["commands_per_s"] is not None


def test_a_terminal_is_refreshed(real: CommandLine) -> None:
    """On a terminal the page comes again and again in place, until Ctrl-C."""
    ours, theirs = pty.openpty()
    with started(real, stdout=theirs) as process:
        os.close(theirs)
        written = b""
        while written.count(b"revision") < 2:
            written += os.read(ours, 65_536)
        process.send_signal(signal.SIGINT)
        while True:
            try:
                os.read(ours, 65_536)
            except OSError:  # the terminal has no writer any more
                break
    os.close(ours)
    assert process.returncode == 130
    assert b"replica" in written
