"""Drives the generations of one replica: from the cut to the snapshot that it restarts from.

The log decides about a generation; this is a replica's part. It is told what was applied
(`cut_taken`, `catalog_changed`), does the local work, and proposes what only the log can decide.
One task (`run`) looks up what to do next in one table (`decisions`): so the actions are in order,
and adoption happens once.

Everything is called on the event loop. During a replay nothing is proposed; local work continues.

Each of several replicas does the local work by itself, and reports its durable generation to the
primary repeatedly until the log has decided. Only the primary proposes: to complete a generation
once a majority has the same root (`agreement`), or to give it up at its deadline. A replica with
another root than was decided has diverged, and ends.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final, Protocol

from coordinator.base.roster import Roster
from coordinator.mux.catalog_types import (
    BeginSnapshot,
    CompleteSnapshot,
    CutTaken,
    FailSnapshot,
    Snapshot,
    SnapshotState,
    TaskSnapshot,
)
from coordinator.mux.stage import Stage
from coordinator.snapshot import agreement, values
from coordinator.snapshot.agreement import Agreed, Disagreed, DurableReport, Reports, Waiting
from coordinator.snapshot.decisions import Action, CatalogState, LocalState, decide
from coordinator.snapshot.divergence import check_root, nobody_is_right, words_about
from coordinator.snapshot.generations import FrozenHere, Generations, created_by
from coordinator.snapshot.sections import GenerationFailed
from coordinator.snapshot.triggers import ReplicaLoad, SnapshotTriggers
from coordinator.snapshot.work import Durable, LocalCut, Report
from coordinator.stages import catalog_codec as codec
from viewstamp.limits import SNAPSHOT_DEADLINE_MS

CHECK_INTERVAL_MS: Final = 1_000
# Before a generation that the log has completed is written again, after a failure here.
REWRITE_DELAY_MS: Final = 5_000
# A reason is for people; messages of a disk or a service can be long.
REASON_CHARACTERS_MAX: Final = 500

_UNDECIDED: Final = (CatalogState.ABSENT, CatalogState.ASKED, CatalogState.CUT)

_log = logging.getLogger(__name__)


class OrchestrationError(Exception):
    """The local state contradicts the log; the message says how. The process must end."""


class SnapshotWork(Protocol):
    """The local work (`work.LocalWork`)."""

    async def make_durable(self, cut: LocalCut, tasks: Sequence[Stage], report: Report) -> bytes:
        """Write a generation and return its root. Raises GenerationFailed."""
        ...

    async def delete(self, generation: int) -> None:
        """Delete the local files of a generation."""
        ...


@dataclass(frozen=True, slots=True)
class Ports:
    """What the orchestrator acts through.

    `adopt` makes a generation the one to restart from (superblock, releases, truncation, garbage);
    it is awaited once for each, in order, and its failure ends the process. `propose` sequences an
    internal command, unless the same one is pending. `publish` shows what was reported so far.
    `next_generation` is the number that BeginSnapshot must have. `tell_primary` sends this
    replica's durable generation to the primary, if that is another; `tell_others` sends it to all,
    as the last message of a diverged replica. `diverged` raises an alarm about another replica and
    a generation.
    """

    work: SnapshotWork
    adopt: Callable[[int], Awaitable[None]]
    propose: Callable[[int, bytes], None]
    publish: Callable[[Snapshot], None]
    next_generation: Callable[[], int]
    load: Callable[[], ReplicaLoad]
    failed: Callable[[str], None]  # an alarm
    completed: Callable[[int], None]  # its end
    tell_primary: Callable[[Durable], None] = lambda _: None
    tell_others: Callable[[Durable], None] = lambda _: None
    diverged: Callable[[int, int, str], None] = lambda *_: None


class LocalSnapshotOrchestrator:
    """One replica's part in every generation.

    `adopted` is the generation from which the replica was restored, None for the empty state;
    `snapshots` are the generations of its catalog section. The log behind the cut is replayed
    through the same calls. `reports` know which replica this is, and which others there are.
    """

    def __init__(
        self,
        ports: Ports,
        triggers: SnapshotTriggers,
        clock_ms: Callable[[], int],
        adopted: Durable | None = None,
        snapshots: Iterable[Snapshot] = (),
        deadline_ms: int = SNAPSHOT_DEADLINE_MS,
        reports: Reports | None = None,
    ) -> None:
        self._ports = ports
        self._triggers = triggers
        self._clock_ms = clock_ms
        self._deadline_ms = deadline_ms
        self._generations = Generations(adopted, snapshots)
        self._reports = reports or Reports(Roster.founding(0, 1))
        self._abandoned: list[FrozenHere] = []
        self._given_up: dict[int, str] = {}
        self._begun_ms: dict[int, int] = {}
        self._adopting = 0
        """The generation that is being adopted, which the log may have deleted meanwhile; 0 for
        none."""
        self._is_primary = False
        self._wake = asyncio.Event()
        self._carry_out: Mapping[Action, Callable[[int], Awaitable[None]]] = {
            Action.NONE: self._wait,
            Action.BEGIN: self._begin,
            Action.WRITE: self._write,
            Action.REPORT: self._report,
            Action.COMPLETE: self._complete,
            Action.FAIL: self._fail,
            Action.ADOPT: self._adopt,
            Action.DELETE: self._delete,
            Action.IMPOSSIBLE: self._stop,
        }

    # --- For tasks ---

    def current_generation(self) -> int:
        """Return the newest generation that the applied log knows."""
        return self._generations.current().generation

    def report(self, generation: int, tasks: Sequence[TaskSnapshot]) -> None:
        """Take tasks that are durable here. Raises ReportRefused; then none is taken."""
        work = self._generations.works.get(generation)
        if work is None:
            values.with_reports(self._generations.current(), generation, tasks, ())  # says why not
            return
        updated = values.with_reports(work.snapshot, generation, tasks, work.tasks)
        if updated != work.snapshot:
            work.snapshot = updated
            if self._generations.catalog_state(generation) in _UNDECIDED:
                self._ports.publish(updated)

    def fail(self, generation: int, reason: str) -> None:
        """Give up the current generation, for a failure that retrying does not cure.

        Raises WrongGeneration, or AlreadyDecided if it is completed or, durable here, about to be;
        failing it twice is no error.
        """
        values.failed(self._generations.current(), generation, reason)
        if self.local_state(generation) is LocalState.DURABLE:
            raise values.AlreadyDecided(f"generation {generation} is durable here: the log decides")
        if generation in self._generations.undecided():
            self._given_up.setdefault(generation, reason)
        self._mark_broken(generation, reason)

    def reported(self, generation: int) -> tuple[TaskSnapshot, ...]:
        """Return the tasks of a generation under way that were reported here."""
        work = self._generations.works.get(generation)
        return () if work is None else work.snapshot.tasks

    @property
    def catalog(self) -> Mapping[int, Snapshot]:
        """The generations that the applied log knows, by number."""
        return self._generations.catalog

    # --- From the log, when a prepare is applied and during the replay ---

    def cut_taken(self, taken: CutTaken, checksum: bytes) -> None:
        """Begin the work on a generation, and give up on older ones that are unfinished here."""
        newest = max(self._generations.works, default=self.adopted_generation)
        if taken.generation <= newest:
            raise OrchestrationError(f"generation {taken.generation} was cut after {newest}")
        for older in list(self._generations.works):
            if older != self._adopting and not self._generations.is_to_be_adopted(older):
                self._abandon(older)
        self._generations.works[taken.generation] = FrozenHere(
            LocalCut(taken, checksum, self._generations.latest_completed()),
            values.expected_tasks(taken.feature_level),
            self.adopted_generation,
            self._generations.catalog.get(taken.generation, created_by(taken)),
        )
        self._triggers.cut_taken(taken.generation, taken.revision, self._ports.load())
        self.wake()

    def catalog_changed(self, snapshots: Sequence[Snapshot], deleted: Sequence[int]) -> None:
        """Take the decisions of an applied prepare."""
        for snapshot in snapshots:
            was = self._generations.catalog.get(snapshot.generation)
            self._generations.catalog[snapshot.generation] = snapshot
            if was is None or was.state is not snapshot.state or was.is_cut != snapshot.is_cut:
                self._on_state[snapshot.state](self, snapshot)
        for generation in deleted:
            self._generations.catalog.pop(generation, None)
            self._forget_limits(generation)
        self.wake()

    def activate(self) -> None:
        """Begin to propose: this replica is primary and has applied its log.

        Deadlines and the interval begin anew.
        """
        self._is_primary = True
        now_ms = self._clock_ms()
        self._begun_ms = dict.fromkeys(self._generations.undecided(), now_ms)
        self._triggers.restart_interval(now_ms)
        self.wake()

    def deactivate(self) -> None:
        """Propose nothing more: another replica is the primary."""
        self._is_primary = False
        self._reports.clear()

    # --- From the other replicas ---

    def durable_elsewhere(self, replica: int, generation: int, report: DurableReport) -> None:
        """Take another replica's report of a durable generation."""
        if not self._reports.take(replica, generation, report):
            return  # it was removed, or this replica has yet to learn of it
        decided = self._generations.catalog.get(generation)
        if decided is None or decided.state is SnapshotState.CREATED:
            self.wake()
        elif decided.state is SnapshotState.COMPLETED:
            self._compare(decided, replica, report)

    # --- For the rest of the replica ---

    @property
    def adopted_generation(self) -> int:
        """The generation that this replica restarts from; 0 for the empty state."""
        return self._generations.adopted_generation

    def local_state(self, generation: int) -> LocalState:
        """Return what this replica holds of a generation."""
        return self._generations.local_state(generation)

    def pins(self) -> frozenset[int]:
        """Return the generations whose files must stay, whatever the catalog says.

        They are the one to restart from, those being written, and the bases of those.
        """
        works = [*self._generations.works.values(), *self._abandoned]
        named = {work.base_generation for work in works} | {w.snapshot.generation for w in works}
        return frozenset(named | {self.adopted_generation}) - {0}

    def wake(self) -> None:
        """Have `run` look for work now."""
        self._wake.set()

    async def run(self) -> None:
        """Do what is due, until cancelled. Any error must end the process."""
        try:
            while True:
                try:
                    async with asyncio.timeout(CHECK_INTERVAL_MS / 1000):
                        await self._wake.wait()
                except TimeoutError:
                    pass  # deadlines and triggers come without a call
                self._wake.clear()
                await self.settle()
        finally:
            await self._end_work()

    async def settle(self) -> None:
        """Do everything that is due now, oldest generation first."""
        await self._clean_up()
        for generation in self._generations.at_hand():
            self._raise_failure(generation)
            action = decide(
                self._generations.situation(generation),
                self._reason_to_fail(generation) != "",
                isinstance(self._verdict(generation), Agreed),
            )
            await self._carry_out[action](generation)
        self._consider()

    # --- Actions ---

    async def _wait(self, generation: int) -> None:
        """Do nothing: the next event comes from elsewhere."""

    async def _begin(self, generation: int) -> None:
        if self._is_primary:
            self._propose_cut(generation)

    async def _write(self, generation: int) -> None:
        work = self._generations.works[generation]
        is_again = bool(work.broken)
        if is_again and self._clock_ms() - work.broken_at_ms >= REWRITE_DELAY_MS:
            work.snapshot = replace(work.snapshot, tasks=())
            work.broken, work.running = "", None
        if work.running is None and not work.broken:
            work.running = asyncio.get_running_loop().create_task(self._do_work(work))
            work.running.add_done_callback(lambda _: self.wake())

    async def _do_work(self, work: FrozenHere) -> None:
        generation = work.snapshot.generation
        try:
            root = await self._ports.work.make_durable(work.cut, work.tasks, self.report)
        except (GenerationFailed, values.ReportRefused) as error:
            _log.error("generation %d cannot be made durable here: %s", generation, error)
            self._break_off(generation, str(error))
            return
        missing = values.missing_tasks(work.snapshot, work.tasks)
        if missing:
            raise OrchestrationError(f"generation {generation} is durable without {missing}")
        work.durable_tasks, work.root = work.snapshot.tasks, root

    async def _report(self, generation: int) -> None:
        if not self._is_primary:
            self._ports.tell_primary(self._generations.durable(generation))

    async def _complete(self, generation: int) -> None:
        verdict = self._verdict(generation)
        assert isinstance(verdict, Agreed), f"generation {generation} is agreed upon: {verdict}"
        command = CompleteSnapshot(generation, verdict.report.root, verdict.report.tasks)
        request = codec.complete_snapshot_request(command)
        self._ports.propose(codec.COMPLETE_SNAPSHOT_CODE, request)

    async def _fail(self, generation: int) -> None:
        if self._is_primary:
            reason = self._reason_to_fail(generation)[:REASON_CHARACTERS_MAX]
            request = codec.fail_snapshot_request(FailSnapshot(generation, reason))
            self._ports.propose(codec.FAIL_SNAPSHOT_CODE, request)

    async def _adopt(self, generation: int) -> None:
        if generation <= self.adopted_generation:
            raise OrchestrationError(
                f"generation {generation} is to be adopted after {self.adopted_generation}"
            )
        durable = self._generations.durable(generation)
        decided = self._generations.catalog[generation]
        check_root(durable, decided, self._ports.tell_others)
        self._adopting = generation
        await self._ports.adopt(generation)
        self._adopting = 0
        self._generations.adopted = durable
        del self._generations.works[generation]

    async def _delete(self, generation: int) -> None:
        self._abandon(generation)
        await self._clean_up()

    async def _stop(self, generation: int) -> None:
        situation = self._generations.situation(generation)
        raise OrchestrationError(f"generation {generation} cannot be here like this: {situation}")

    def _consider(self) -> None:
        """Begin a snapshot that nobody asked for, if it is due."""
        current = self._generations.newest()
        if not self._is_primary or current.state is SnapshotState.CREATED:
            return
        trigger = self._triggers.due(self._ports.load())
        if trigger is not None:
            generation = self._ports.next_generation()
            _log.info("generation %d has begun: %s", generation, trigger.value)
            self._propose_cut(generation)

    def _propose_cut(self, generation: int) -> None:
        keep = self._triggers.settings
        command = BeginSnapshot(generation, keep.keep_last, keep.keep_daily)
        request = codec.begin_snapshot_request(command)
        self._ports.propose(codec.BEGIN_SNAPSHOT_CODE, request)

    # --- Reasons ---

    def _reason_to_fail(self, generation: int) -> str:
        """Return why a generation is to be given up by now; empty if it is not."""
        given_up = self._given_up.get(generation, "")
        begun_ms = self._begun_ms.get(generation)
        if given_up or not self._is_primary or begun_ms is None:
            return given_up
        if self._clock_ms() - begun_ms < self._deadline_ms:
            return ""
        lacks = self._generations.what_lacks(generation)
        if not lacks and isinstance(verdict := self._verdict(generation), Waiting):
            lacks = f"replicas {verdict.reported} have it; {verdict.needed} equal ones are needed"
        return f"not durable within {self._deadline_ms} ms: {lacks}"

    def _verdict(self, generation: int) -> agreement.Verdict | None:
        """Return the verdict of the replicas' reports; None if it is not this replica's to give.

        Raises DivergedError if there will never be a majority.
        """
        is_cut = self._generations.catalog_state(generation) is CatalogState.CUT
        if not self._is_primary or not is_cut:
            return None
        verdict = self._reports.judge(generation, self._generations.report(generation))
        if isinstance(verdict, Disagreed):
            raise nobody_is_right(generation, verdict)
        return verdict

    # --- Changes of state ---

    def _created(self, snapshot: Snapshot) -> None:
        self._begun_ms.setdefault(snapshot.generation, self._clock_ms())
        work = self._generations.works.get(snapshot.generation)
        if work is not None:
            work.snapshot = replace(snapshot, tasks=work.snapshot.tasks)

    def _completed(self, snapshot: Snapshot) -> None:
        self._forget_limits(snapshot.generation)
        work = self._generations.works.get(snapshot.generation)
        if work is not None and work.root:
            work.snapshot = snapshot
        for replica, report in self._reports.of(snapshot.generation).items():
            self._compare(snapshot, replica, report)
        self._triggers.completed(snapshot.generation)
        self._ports.completed(snapshot.generation)

    def _failed(self, snapshot: Snapshot) -> None:
        self._forget_limits(snapshot.generation)
        work = self._generations.works.get(snapshot.generation)
        if work is not None:
            work.snapshot = values.failed(work.snapshot, snapshot.generation, snapshot.failure)
        self._triggers.failed(snapshot.generation, self._clock_ms())
        self._ports.failed(f"snapshot {snapshot.generation} has failed: {snapshot.failure}")

    _on_state: Final = {
        SnapshotState.CREATED: _created,
        SnapshotState.COMPLETED: _completed,
        SnapshotState.FAILED: _failed,
    }

    def _compare(self, decided: Snapshot, replica: int, report: DurableReport) -> None:
        if report.root != decided.root:
            why = words_about(replica, report.tasks, decided)
            self._ports.diverged(replica, decided.generation, why)

    def _break_off(self, generation: int, reason: str) -> None:
        """Note that it cannot be written here; others may complete it until its deadline."""
        if not self._reports.others_suffice:
            with suppress(values.ReportRefused):  # it was decided meanwhile
                self.fail(generation, reason)
        self._mark_broken(generation, reason)

    def _mark_broken(self, generation: int, reason: str) -> None:
        work = self._generations.works.get(generation)
        if work is not None and not work.root:
            work.broken, work.broken_at_ms = reason, self._clock_ms()
        self.wake()

    def _forget_limits(self, generation: int) -> None:
        self._given_up.pop(generation, None)
        self._begun_ms.pop(generation, None)

    def _abandon(self, generation: int) -> None:
        """End the work on a generation; its files are deleted as soon as nobody writes to them."""
        work = self._generations.works.pop(generation)
        if work.running is not None:
            work.running.cancel()
        self._abandoned.append(work)

    async def _clean_up(self) -> None:
        while self._abandoned:
            work = self._abandoned[0]
            await _ended(work.running)
            await self._ports.work.delete(work.snapshot.generation)
            self._abandoned.pop(0)

    async def _end_work(self) -> None:
        running = [
            w.running for w in (*self._generations.works.values(), *self._abandoned) if w.running
        ]
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    def _raise_failure(self, generation: int) -> None:
        """Raise the error that ended the work on a generation, unless it was expected."""
        work = self._generations.works.get(generation)
        if work is not None and work.running is not None and work.running.done():
            work.running.result()


async def _ended(running: asyncio.Task[None] | None) -> None:
    """Wait for work that was cancelled. Raises what it failed with."""
    if running is not None:
        await asyncio.wait([running])
        if not running.cancelled():
            running.result()
