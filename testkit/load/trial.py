"""A trial: a local cluster, an optional import, load, kills, checks, and a replay from scratch."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from testkit.load.commands import PATIENCE_MS
from testkit.load.cuts import SnapshotRequests
from testkit.load.generations import TakenGeneration, check_files, check_last_layers, list_taken
from testkit.load.generator import SILENCE_MAX_S, LoadGenerator, LoadOptions
from testkit.load.kills import (
    PlannedKill,
    ProcessKill,
    check_kills,
    kill_during_cut,
    kill_under_load,
)
from testkit.load.observation import digests, observe, reader, root_password, wait_until_quiet
from testkit.load.oracle import (
    Check,
    Digests,
    Violation,
    check_digests,
    check_records,
)
from testkit.load.records import LoadAnswer, Record, RecordFile, read_records
from testkit.load.replay import (
    Start,
    check_starts,
    replayed_digests,
    restored_digests,
    starts_of,
)
from testkit.load.state import LoadState
from testkit.load.workload import GroupName
from viewstamp.api.users.v1 import users_service_pb2 as users_pb2
from viewstamp.client import Client, Endpoint, connect, unary
from viewstamp.cluster import LocalCluster
from viewstamp.limits import MIB, ROOT_USERNAME
from viewstamp.telemetry.settings import TelemetrySettings

# Of the cluster, below the directory of the trial.
DATA_DIRECTORY: Final = "cluster"
# Existing groups that sessions join and leave: few enough to be crowded.
GROUPS_CONTENDED: Final = 60
# The least that a coordinator takes, so that snapshots free journal segments all the time.
JOURNAL_SEGMENT_BYTES: Final = 4 * MIB


@dataclass(frozen=True, slots=True)
class TrialOptions:
    """Options of a trial: `kills` in order, each after a random delay, or at once during a cut.

    A snapshot is asked for `snapshot_pause_s` after the one before was decided, and triggered by
    every `snapshot_commands` (0: never). The newest `snapshots_kept` are kept. With
    `partitions_max` above 1 groups rebalance.
    """

    directory: Path
    seed: int
    kills: Sequence[PlannedKill]
    snapshot_pause_s: float
    snapshot_commands: int
    snapshots_kept: int
    sessions: int = 36
    delay_max_s: float = 1.0
    partitions_max: int = 1
    # Where told, every process writes traces there.
    telemetry: TelemetrySettings | None = None
    # Runs before the load, on the empty cluster.
    prepare: Callable[[Client], Awaitable[None]] | None = None


@dataclass(slots=True)
class TrialReport:
    """The actions and findings of a trial."""

    seed: int
    kills: list[ProcessKill] = field(default_factory=list)
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
    # Those kept in the end, oldest first.
    snapshots: list[TakenGeneration] = field(default_factory=list)
    # Of the coordinator, restarts included.
    starts: list[Start] = field(default_factory=list)
    segments_dropped: int = 0
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
        plain["kills"] = list(map(asdict, self.kills))
        plain["snapshots"] = list(map(asdict, self.snapshots))
        plain["starts"] = list(map(asdict, self.starts))
        plain["violations"] = [
            {"check": violation.check.name.lower(), "evidence": violation.evidence}
            for violation in self.violations
        ]
        return {"succeeded": self.succeeded, **plain}


class LoadTrial:
    """One trial. `run` carries it out; the public attributes may be read meanwhile."""

    def __init__(self, options: TrialOptions) -> None:
        self.report = TrialReport(options.seed)
        self.load: LoadGenerator | None = None
        self.loading = asyncio.Event()
        self.current_step = "start"
        self._options = options
        self._data = options.directory / DATA_DIRECTORY
        self._records = options.directory / "acknowledged.jsonl"
        self._archive = options.directory / "archive"
        self._asked: set[int] = set()

    async def run(self) -> TrialReport:
        """Do the trial and return the report.

        Raises LoadFailed, ClusterError, Refusal, ClientError if it could not be brought to an end.
        """
        self._archive.mkdir(mode=0o700)
        cluster = self._cluster()
        async with cluster:
            await self._prepare(cluster)
            async with reader(cluster.address, root_password(cluster)) as client:
                before = await observe(client)
                contended = self._contended(before)
                await self._be_patient(cluster, contended)
                await self._run_load(cluster, contended)
                self.current_step = "check"
                await wait_until_quiet(client)
                last_generation = await self._take_last(cluster)
                after = await observe(client)
                live = await digests(client)
                self.report.snapshots = await list_taken(client, self._asked)
            self.report.restarts = dict(cluster.restarts)
        records = read_records(self._records)
        self._count(records)
        self.report.entities = after.counts()
        self.report.revision, self.report.digests = live.revision, dict(live.stages)
        self.report.violations += check_kills(
            self._options.kills, self.report.kills, self.report.restarts
        )
        self.report.violations += check_records(records, before, after)
        await self._check_on_disk(live, last_generation)
        self.current_step = "done"
        return self.report

    async def _check_on_disk(self, live: Digests, last_generation: int) -> None:
        """Compare the files of the stopped cluster, and their replay, with its answers."""
        found = self.report.violations
        found += check_files(self.report.snapshots, self._data)
        found += check_last_layers(self._data, last_generation, live)
        self.current_step = "restore"
        copy = self._options.directory / "restored"
        restored = await restored_digests(self._data, copy)
        found += check_digests(live, restored, Check.RESTORED)
        self.report.starts = starts_of(self._data)
        self.report.segments_dropped = len(list(self._archive.iterdir()))
        found += check_starts(self.report.starts, starts_of(copy))
        self.current_step = "replay"
        replayed = await replayed_digests(
            self._data, self._archive, self._options.directory / "replay"
        )
        found += check_digests(live, replayed)

    def _cluster(self) -> LocalCluster:
        flags = {
            "--journal-archive": str(self._archive.resolve()),
            "--journal-segment-bytes": str(JOURNAL_SEGMENT_BYTES),
            "--snapshot-commands": str(self._options.snapshot_commands),
            "--snapshot-keep-last": str(self._options.snapshots_kept),
        }
        arguments = [word for flag in flags.items() for word in flag]
        return LocalCluster(
            self._data,
            "127.0.0.1:0",
            coordinator_arguments=arguments,
            telemetry=self._options.telemetry,
        )

    async def _prepare(self, cluster: LocalCluster) -> None:
        if self._options.prepare is None:
            return
        self.current_step = "prepare"
        async with await _client(cluster) as client:
            await self._options.prepare(client)

    async def _be_patient(self, cluster: LocalCluster, groups: Sequence[GroupName]) -> None:
        """Have the groups keep members that give no signs of life, as sessions of the load do."""
        async with await _client(cluster) as client:
            for group in groups:
                await client.groups.update(
                    group.stream, group.topic, group.group, member_timeout_ms=PATIENCE_MS
                )

    async def _run_load(self, cluster: LocalCluster, groups: Sequence[GroupName]) -> None:
        self.current_step = "load"
        options = LoadOptions(
            self._options.sessions, self._options.seed, groups, self._options.partitions_max
        )
        addresses = [cluster.address]
        with RecordFile(self._records) as records:
            load = LoadGenerator(addresses, await _access_token(cluster), options, records)
            self.load = load
            async with self._snapshots(cluster) as requests:
                load.start()
                self.loading.set()
                try:
                    await self._kill_all(cluster, load, requests)
                    await load.finish()
                finally:
                    await load.cancel()
        self.report.reconnects = load.reconnects

    @asynccontextmanager
    async def _snapshots(self, cluster: LocalCluster) -> AsyncIterator[SnapshotRequests]:
        async with await _client(cluster) as client:
            requests = SnapshotRequests(client.snapshots, self._options.snapshot_pause_s)
            self._asked = requests.generations
            requests.start()
            try:
                yield requests
                await requests.finish()
            finally:
                await requests.cancel()

    async def _kill_all(
        self, cluster: LocalCluster, load: LoadGenerator, requests: SnapshotRequests
    ) -> None:
        chance = random.Random(self._options.seed)
        for planned in self._options.kills:
            if planned.during_cut:
                self.report.kills += await kill_during_cut(
                    cluster, load, requests, planned.process, chance
                )
                continue
            delay_s = chance.uniform(0.0, self._options.delay_max_s)
            self.report.kills.append(await kill_under_load(cluster, load, planned.process, delay_s))

    async def _take_last(self, cluster: LocalCluster) -> int:
        """Take a snapshot of the state that is going to be observed."""
        async with await _client(cluster) as client:
            created = await client.snapshots.create()
            await client.snapshots.decided(created.generation)
            self._asked.add(created.generation)
            return created.generation

    def _contended(self, before: LoadState) -> list[GroupName]:
        groups = [
            GroupName(stream_name, topic_name, group_name)
            for stream_name, stream in before.streams.items()
            for topic_name, topic in stream.topics.items()
            for group_name in topic.groups
        ]
        count = min(GROUPS_CONTENDED, len(groups))
        return random.Random(self._options.seed).sample(groups, count)

    def _count(self, records: Sequence[Record]) -> None:
        answers = [record for record in records if isinstance(record, LoadAnswer)]
        self.report.requests = len(answers)
        self.report.duplicates = len(records) - len(answers)
        self.report.sent_again = sum(answer.sends > 1 for answer in answers)
        for answer in answers:
            self.report.commands += len(answer.commands)
            self.report.refused += sum(bool(outcome.reason) for outcome in answer.outcomes)


async def _client(cluster: LocalCluster) -> Client:
    return await connect(
        cluster.address,
        username=ROOT_USERNAME,
        password=root_password(cluster),
        timeout_s=SILENCE_MAX_S,
    )


async def _access_token(cluster: LocalCluster) -> str:
    channel = Endpoint(cluster.address).open()
    try:
        request = users_pb2.LoginRequest(username=ROOT_USERNAME, password=root_password(cluster))
        return str((await unary(channel, request)).access_token)
    finally:
        await channel.close()
