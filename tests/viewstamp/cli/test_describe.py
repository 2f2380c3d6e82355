"""`describe`: an entity with what belongs to it, at one revision, with bounds."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

import viewstamp
from tests.processes.processes import ReplicaProcesses
from tests.viewstamp.cli.conftest import CommandLine
from viewstamp.cli import describing
from viewstamp.cli.describing import (
    READINGS_MAX,
    DescribedSection,
    EntityDescription,
    NotedReads,
    describe,
    runs,
)
from viewstamp.cli.documents import OutputFormat
from viewstamp.cli.settings import Settings
from viewstamp.client import Client

PARTITIONS = 6


@pytest.fixture
def store(real: CommandLine, processes: ReplicaProcesses) -> CommandLine:
    """A command line at a cluster with a group that has a member and a lag."""
    if real("stream", "get", "store").code:
        asyncio.run(fill(processes))
    return real


async def fill(processes: ReplicaProcesses) -> None:
    """Create a stream with two topics, and a group that has read a part of one of them."""
    async with await viewstamp.connect(
        processes.address, username="root", password=processes.root_password()
    ) as client:
        await client.streams.create("store")
        topic = await client.topics.create("store", "sales", partitions_count=PARTITIONS)
        await client.topics.create("store", "empty", partitions_count=0)
        ends = dict.fromkeys(range(4), 100)
        await client.topics.report_partition_ends("store", topic.topic_id, ends)
        await client.groups.create("store", "sales", "audit")
        await client.groups.create("store", "sales", "books")
        read = {0: 90, 1: 100, 5: 3}
        await client.groups.commit_offsets("store", "sales", "books", read, allow_out_of_range=True)
        await client.users.create("clerk", "a long password")
        await client.tokens.create("till")


def test_a_topic_has_partitions_watermarks_and_groups(store: CommandLine) -> None:
    """A topic shows its options, its runs of partitions, and each group with state and lag."""
    found = store("topic", "describe", "store/sales", "--json").data
    assert found["revision"] == found["last_revision"] > 0
    assert found["topic"]["options"]["replication_factor"] == 1
    assert [row["count"] for row in found["partitions"]] == [PARTITIONS]
    assert [row["end_offset"] for row in found["watermarks"]] == [100] * 4
    groups = {
        row["name"]: (row["state"], row["lag"], row["unknown_lags"]) for row in found["groups"]
    }
    assert groups == {"audit": ("empty", 0, 0), "books": ("empty", 10, 1)}
    assert found["cut_off"] == []


def test_a_group_has_members_and_a_lag_by_partition(store: CommandLine) -> None:
    """A group shows its epochs and settings, and lag by partition, and the sum of it."""
    found = store("group", "describe", "store/sales/books", "--json").data
    assert found["group"]["lag"] == 10
    assert found["group"]["assignor"] == "uniform"
    assert "members" not in found["group"] and found["members"] == []
    lags = [(row["partition"], row["offset"], row["lag"]) for row in found["offsets"]]
    assert lags == [(0, 90, 10), (1, 100, 0), (5, 3, None)]


def test_a_stream_has_its_topics(store: CommandLine) -> None:
    """A stream shows its topics with partitions and the offsets that remain in them."""
    found = store("stream", "describe", "store", "--json").data
    topics = [(row["name"], row["partitions_count"], row["offsets"]) for row in found["topics"]]
    assert topics == [("sales", PARTITIONS, 400), ("empty", 0, 0)]


@pytest.mark.parametrize("whom", [[], ["root"]])
def test_a_user_has_tokens_and_sessions(store: CommandLine, whom: list[str]) -> None:
    """A user shows permissions and tokens; the caller is meant where nobody is named."""
    found = store("user", "describe", *whom, "--json").data
    assert found["user"]["permissions"]["global"]["manage_servers"]
    assert "till" in {row["name"] for row in found["tokens"]}
    assert isinstance(found["sessions"], list)
    assert "everywhere: manage_servers" in store("user", "describe", *whom).out


@pytest.mark.parametrize(
    ("command", "section"),
    [
        ("stream describe store", "topics"),
        ("topic describe store sales", "watermarks"),
        ("group describe store sales books", "offsets"),
    ],
)
def test_a_limit_bounds_each_section(store: CommandLine, command: str, section: str) -> None:
    """No section has more lines than the limit, and one that has more says so."""
    found = store(*command.split(), "--limit", "1", "-o", "yaml")
    values = yaml.safe_load(found.out)
    assert len(values[section]) == 1
    assert section in values["cut_off"]
    told = store(*command.split(), "--limit", "1").out
    assert f"there are more {section}: raise --limit" in told
    assert told.splitlines()[-1] == f"as of revision {values['revision']}"
    assert store(*command.split(), "-o", "name").code == 2


def test_partitions_are_told_as_runs() -> None:
    """Neighbours are one run, and a cell has no more than some runs."""
    assert runs([]) == ""
    assert runs([3]) == "3"
    assert runs([0, 1, 2, 7, 9, 10]) == "0-2, 7, 9-10"
    assert runs(range(0, 40, 2)) == "0, 2, 4, 6, 8, 10, 12, 14, ..."


class ChangingClient:
    """A client of a cluster whose revision grows until it has answered so many calls."""

    def __init__(self, changes: int) -> None:
        self.revision = 1
        self._changes = changes

    async def call(self, request: Any, **_: Any) -> Any:
        """Answer at the next revision."""
        if self.revision <= self._changes:
            self.revision += 1
        return SimpleNamespace(header=SimpleNamespace(revision=self.revision))


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        (0, "as of revision 1"),
        (2, "as of revision 3"),
        (9, f"as of revisions {2 * READINGS_MAX} to {2 * READINGS_MAX + 1}: the cluster changed"),
    ],
)
def test_a_change_in_between_has_everything_read_again(
    changes: int, told: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A description is of one revision, if need be of a later one; else it tells of which."""

    def run(_: Any, action: Callable[[Client], Any], revision: int | None) -> Any:
        assert revision is None
        client: Any = ChangingClient(changes)
        return asyncio.run(action(client))

    async def described(reads: NotedReads) -> EntityDescription:
        request: Any = None
        for _ in range(2):
            await reads.call(request)
        return EntityDescription("topic", "a", {"id": 1}, {"groups": DescribedSection((), [])})

    monkeypatch.setattr(describing, "run", run)
    context: Any = SimpleNamespace(obj=Settings(output=OutputFormat.table), command_path="")
    describe(context, described)
    assert capsys.readouterr().out.splitlines()[-1].startswith(told)
