"""One round: load, faults, the end of the faults, and the verdict."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol

from testkit.load.cuts import create_snapshot
from testkit.load.failures import CLUSTER_FAILURES
from testkit.load.generations import list_taken
from testkit.load.generator import LoadGenerator, LoadOptions
from testkit.load.observation import observe
from testkit.load.records import LoadAnswer, RecordFile, read_records
from testkit.load.session import LoadFailed
from testkit.torture.cluster import REPLICAS, TortureCluster
from testkit.torture.judge import (
    judge_history,
    judge_replicas,
    judge_sessions,
    judge_snapshots,
    judge_watches,
)
from testkit.torture.keys import KeyPlace, create_places
from testkit.torture.readers import PlaceReader, ReplicaReader, TogetherReader
from testkit.torture.recorder import Recorder
from testkit.torture.watchers import ClusterWatchers
from testkit.torture.writers import TransactionWriter
from viewstamp.client import Client, connect
from viewstamp.client.transport import Endpoint
from viewstamp.limits import ROOT_USERNAME

WRITERS: Final = 3
SESSIONS: Final = 1
# Shorter than many faults, so that outcomes stay unknown.
CALL_TIMEOUT_S: Final = 6.0
# Once nothing is hurt any more, everything is ready, answers and is level within this time.
RECOVERY_MAX_S: Final = 90.0
# Nobody was answered for so long: worth a figure.
SILENCE_MIN_MS: Final = 500
FAILURES: Final = (LoadFailed, *CLUSTER_FAILURES)


@dataclass(slots=True)
class RoundFigures:
    """What was done in a round, what it cost callers, and the promises found broken."""

    number: int
    seed: int
    kills: dict[str, int] = field(default_factory=dict)
    faults: dict[str, int] = field(default_factory=dict)
    # Transactions by kind and outcome, and refusals.
    counts: dict[str, int] = field(default_factory=dict)
    transactions: int = 0
    requests: int = 0
    duplicates: int = 0
    sent_again: int = 0
    silences_ms: list[int] = field(default_factory=list)
    recovery_ms: int = 0
    snapshots: int = 0
    # How many revisions watchers were shown, each by itself.
    watched: int = 0
    findings: list[str] = field(default_factory=list)
    took_s: float = 0.0

    @property
    def kill_count(self) -> int:
        """How many processes were killed."""
        return sum(self.kills.values())


class Injector(Protocol):
    """What hurts a cluster in a round. `kills` counts processes, `faults` what was done."""

    kills: Counter[str]
    faults: Counter[str]

    async def run(self) -> None:
        """Hurt the cluster, and undo everything that lasts."""


class RoundCaller(Protocol):
    """Somebody who calls until `is_over`."""

    is_over: bool

    async def run(self) -> None:
        """Call until it is over."""


class TortureRound:
    """One round on a running cluster. `run` carries it out and returns its figures.

    `recorder` has the history afterwards, `watchers` what they were shown, and `places` what was
    made for the round.
    """

    def __init__(
        self,
        cluster: TortureCluster,
        number: int,
        seed: int,
        injector_of: Callable[[Recorder], Injector],
        directory: Path,
    ) -> None:
        self.figures = RoundFigures(number, seed)
        self.places: list[KeyPlace] = []
        self._cluster = cluster
        self._injector_of = injector_of
        self._directory = directory
        self.recorder = Recorder()
        self.watchers = ClusterWatchers(cluster, self.recorder, seed)
        self._records = directory / "acknowledged.jsonl"

    async def run(self) -> RoundFigures:
        """Run the round. Raises nothing of FAILURES: they are findings."""
        started_s = time.monotonic()
        self._directory.mkdir(parents=True)
        try:
            await self._run()
        except FAILURES as error:
            text = f"the round could not be brought to an end: {in_words(error)}"
            self.figures.findings.append(text)
        deaths = self._cluster.deaths.found
        self.figures.findings += [f"a process ended by itself: {end}" for end in deaths]
        deaths.clear()
        # In a thread: the links between the replicas go through this process.
        history, feed = self.recorder.history, self.watchers.feed
        self.figures.findings += await asyncio.to_thread(judge_history, self.recorder)
        self.figures.findings += await asyncio.to_thread(judge_watches, feed, history)
        self._count()
        self.figures.took_s = round(time.monotonic() - started_s, 1)
        if self.figures.findings:
            self.recorder.write(self._directory / "history.jsonl")
            (self._directory / "findings.txt").write_text("\n\n".join(self.figures.findings))
        return self.figures

    async def _run(self) -> None:
        admin, seed = self._cluster.admin, self.figures.seed
        places, first = await create_places(admin, f"round{self.figures.number}")
        self.places = places
        self.recorder.history += first
        before = await observe(admin)
        await self._hurt_under_load(places, seed)
        await self._read_all_everywhere(places)
        decided = await admin.snapshots.decided(await create_snapshot(admin.snapshots))
        statuses = await self._cluster.settled(RECOVERY_MAX_S)
        after, taken = await observe(admin), await list_taken(admin, {decided.generation})
        self.figures.snapshots = sum(one.state == "COMPLETED" for one in taken)
        directories = [self._cluster.replicas.replica_directory(each) for each in range(REPLICAS)]
        findings = self.figures.findings
        findings += judge_replicas(statuses)
        findings += await asyncio.to_thread(judge_sessions, self._records, before, after)
        findings += await asyncio.to_thread(judge_snapshots, taken, directories)

    async def _hurt_under_load(self, places: Sequence[KeyPlace], seed: int) -> None:
        injector = self._injector_of(self.recorder)
        options = LoadOptions(SESSIONS, seed, [], partitions_max=1)
        with RecordFile(self._records) as records:
            token = await self._token()
            load = LoadGenerator(self._cluster.addresses, token, options, records)
            async with self.watchers.following(RECOVERY_MAX_S), self._callers(places, seed):
                load.start()
                try:
                    await injector.run()
                    await self._recover()
                    await load.finish()
                finally:
                    await load.cancel()
                    self.figures.kills = dict(injector.kills)
                    self.figures.faults = dict(injector.faults)

    async def _recover(self) -> None:
        """Wait until every process is ready and a caller is answered."""
        began_s = time.monotonic()
        await self._cluster.replicas.wait_ready(RECOVERY_MAX_S)
        if not await self.recorder.until_answered(REPLICAS, RECOVERY_MAX_S):
            self.figures.findings.append(
                f"nobody was answered within {RECOVERY_MAX_S:g} s after the last fault was over"
            )
        self.figures.recovery_ms = round((time.monotonic() - began_s) * 1000)

    @asynccontextmanager
    async def _callers(self, places: Sequence[KeyPlace], seed: int) -> AsyncIterator[None]:
        """Let writers write and readers read during the block."""
        async with AsyncExitStack() as stack:
            writers = [
                TransactionWriter(
                    f"round{self.figures.number}-writer{number}",
                    await self.client(stack),
                    places,
                    self.recorder,
                    f"{seed}/{number}",
                )
                for number in range(WRITERS)
            ]
            callers: list[RoundCaller] = [*writers, *self._readers(places)]
            callers += await self.further_callers(stack)
            async with asyncio.TaskGroup() as group:
                for caller in callers:
                    group.create_task(caller.run())
                try:
                    yield
                finally:
                    for caller in callers:
                        caller.is_over = True

    async def further_callers(self, stack: AsyncExitStack) -> list[RoundCaller]:
        """Return callers beside writers and readers; what they need is closed by the stack."""
        return []

    async def client(self, stack: AsyncExitStack) -> Client:
        """Return a client of its own, which gives up calls earlier than many faults are over."""
        return await stack.enter_async_context(
            await connect(
                self._cluster.addresses,
                username=ROOT_USERNAME,
                password=self._cluster.password,
                timeout_s=CALL_TIMEOUT_S,
            )
        )

    def _readers(self, places: Sequence[KeyPlace]) -> list[PlaceReader]:
        """Return a reader of each replica, and one that reads several places together."""
        seed, identity = self.figures.seed, self._cluster.identity
        of_replicas: list[PlaceReader] = [
            ReplicaReader(
                address,
                f"reader of replica {replica}",
                identity,
                places,
                self.recorder,
                f"{seed}/{replica}",
            )
            for replica, address in enumerate(self._cluster.addresses)
        ]
        together = TogetherReader(
            self._cluster.addresses,
            "reader of several places",
            identity,
            places,
            self.recorder,
            f"{seed}/together",
        )
        return [*of_replicas, together]

    async def _read_all_everywhere(self, places: Sequence[KeyPlace]) -> None:
        """Read everything once more, of each replica: what was acknowledged must be there."""
        for reader in self._readers(places):
            await reader.read_all()

    async def _token(self) -> str:
        async with Endpoint(self._cluster.addresses[0]).open() as channel:
            return await self._cluster.identity.access_token(channel)

    def _count(self) -> None:
        figures = self.figures
        figures.counts = dict(Counter(self.recorder.counts))
        figures.transactions = len(self.recorder.history)
        figures.watched = self.watchers.feed.revisions
        figures.silences_ms = self.recorder.silences_ms(SILENCE_MIN_MS)
        if not self._records.exists():
            return
        records = read_records(self._records)
        answers = [record for record in records if isinstance(record, LoadAnswer)]
        figures.requests, figures.duplicates = len(answers), len(records) - len(answers)
        figures.sent_again = sum(answer.sends > 1 for answer in answers)


def in_words(error: BaseException) -> str:
    """Return what an error says, or what each error of a group says."""
    if isinstance(error, BaseExceptionGroup):
        return "; ".join(map(in_words, error.exceptions))
    return f"{type(error).__name__}: {error}"
