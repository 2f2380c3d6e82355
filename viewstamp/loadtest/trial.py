"""A trial: a local cluster, an optional import, load, kills, checks, and a replay from scratch."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from viewstamp.api.users.v1 import users_service_pb2 as users_pb2
from viewstamp.client import Client, Endpoint, connect, unary
from viewstamp.cluster import LocalCluster
from viewstamp.limits import ROOT_USERNAME
from viewstamp.loadtest.generator import LoadGenerator, LoadOptions
from viewstamp.loadtest.kills import Kill, check_kills, kill_under_load
from viewstamp.loadtest.observation import digests, observe, reader, root_password, wait_until_quiet
from viewstamp.loadtest.oracle import Check, Violation, check_digests, check_records
from viewstamp.loadtest.records import Answer, Record, RecordFile, read_records
from viewstamp.loadtest.replay import replay_digests
from viewstamp.loadtest.state import State
from viewstamp.loadtest.workload import GroupName

# Existing groups that sessions join and leave: few enough to be crowded.
GROUPS_CONTENDED: Final = 60


@dataclass(frozen=True, slots=True)
class TrialOptions:
    """What a trial does: `kills` are the processes in order, each after a random delay.

    With `partitions_max` above 1 groups rebalance, and the end waits for revocations (30 s).
    """

    directory: Path
    seed: int
    kills: Sequence[str]
    sessions: int = 36
    delay_max_s: float = 1.0
    partitions_max: int = 1
    # Runs before the load, on the empty cluster.
    prepare: Callable[[Client], Awaitable[None]] | None = None


@dataclass(slots=True)
class TrialReport:
    """What a trial did and found."""

    seed: int
    kills: list[Kill] = field(default_factory=list)
    restarts: dict[str, int] = field(default_factory=dict)
    requests: int = 0
    commands: int = 0
    refused: int = 0
    sent_again: int = 0
    duplicates: int = 0
    reconnects: int = 0
    entities: dict[str, int] = field(default_factory=dict)
    revision: int = 0
    digests: dict[str, str] = field(default_factory=dict)
    violations: list[Violation] = field(default_factory=list)

    @property
    def checks(self) -> dict[Check, list[Violation]]:
        """Every check, and what it found."""
        return {check: [one for one in self.violations if one.check is check] for check in Check}

    @property
    def succeeded(self) -> bool:
        """Whether every promise was kept."""
        return not self.violations and self.commands > 0 and self.duplicates > 0

    def to_json(self) -> dict[str, Any]:
        """Return the report for machines."""
        plain = {name: getattr(self, name) for name in self.__slots__}
        plain["kills"] = [
            {name: getattr(kill, name) for name in kill.__slots__} for kill in self.kills
        ]
        plain["violations"] = [
            {"check": violation.check.name.lower(), "evidence": violation.evidence}
            for violation in self.violations
        ]
        return {"succeeded": self.succeeded, **plain}


class Trial:
    """One trial; `run` does it. What is public may be looked at meanwhile."""

    def __init__(self, options: TrialOptions) -> None:
        self.report = TrialReport(options.seed)
        self.load: LoadGenerator | None = None
        self.loading = asyncio.Event()
        self.current_step = "start"
        self._options = options
        self._data = options.directory / "cluster"
        self._records = options.directory / "acknowledged.jsonl"
        self._archive = options.directory / "archive"

    async def run(self) -> TrialReport:
        """Do the trial and return the report.

        Raises LoadFailed, ClusterError, Refusal, ClientError if it could not be brought to an end.
        """
        self._archive.mkdir(mode=0o700)
        cluster = LocalCluster(
            self._data,
            "127.0.0.1:0",
            coordinator_arguments=("--journal-archive", str(self._archive.resolve())),
        )
        async with cluster:
            await self._prepare(cluster)
            async with reader(cluster.address, root_password(cluster)) as client:
                before = await observe(client)
                await self._run_load(cluster, self._contended(before))
                self.current_step = "check"
                await wait_until_quiet(client)
                after = await observe(client)
                live = await digests(client)
            self.report.restarts = dict(cluster.restarts)
        records = read_records(self._records)
        self._count(records)
        self.report.entities = after.counts()
        self.report.violations += check_kills(
            self._options.kills, self.report.kills, self.report.restarts
        )
        self.report.violations += check_records(records, before, after)
        self.current_step = "replay"
        replayed = await replay_digests(self._data, self._options.directory / "replay")
        self.report.revision, self.report.digests = live.revision, dict(live.stages)
        self.report.violations += check_digests(live, replayed)
        self.current_step = "done"
        return self.report

    async def _prepare(self, cluster: LocalCluster) -> None:
        if self._options.prepare is None:
            return
        self.current_step = "prepare"
        client = await connect(
            cluster.address, username=ROOT_USERNAME, password=root_password(cluster)
        )
        async with client:
            await self._options.prepare(client)

    async def _run_load(self, cluster: LocalCluster, groups: Sequence[GroupName]) -> None:
        self.current_step = "load"
        options = LoadOptions(
            self._options.sessions, self._options.seed, groups, self._options.partitions_max
        )
        endpoint = Endpoint(cluster.address)
        delays = random.Random(self._options.seed)
        with RecordFile(self._records) as records:
            load = LoadGenerator(endpoint, await _access_token(cluster), options, records)
            self.load = load
            load.start()
            self.loading.set()
            try:
                for process in self._options.kills:
                    delay_s = delays.uniform(0.0, self._options.delay_max_s)
                    kill = await kill_under_load(cluster, load, process, delay_s)
                    self.report.kills.append(kill)
                await load.finish()
            finally:
                await load.cancel()
        self.report.reconnects = load.reconnects

    def _contended(self, before: State) -> list[GroupName]:
        groups = [
            GroupName(stream_name, topic_name, group_name)
            for stream_name, stream in before.streams.items()
            for topic_name, topic in stream.topics.items()
            for group_name in topic.groups
        ]
        count = min(GROUPS_CONTENDED, len(groups))
        return random.Random(self._options.seed).sample(groups, count)

    def _count(self, records: Sequence[Record]) -> None:
        answers = [record for record in records if isinstance(record, Answer)]
        self.report.requests = len(answers)
        self.report.duplicates = len(records) - len(answers)
        self.report.sent_again = sum(answer.sends > 1 for answer in answers)
        for answer in answers:
            self.report.commands += len(answer.commands)
            self.report.refused += sum(bool(outcome.reason) for outcome in answer.outcomes)


async def _access_token(cluster: LocalCluster) -> str:
    channel = Endpoint(cluster.address).open()
    try:
        request = users_pb2.LoginRequest(username=ROOT_USERNAME, password=root_password(cluster))
        return str((await unary(channel, request)).access_token)
    finally:
        await channel.close()
