"""Making one generation durable on this replica: all sections, then the manifest.

Sections are read at the same time and written in threads. A section whose service goes away is read
again from its start. If the manifest of the same cut is already here, from before a restart,
nothing is written: the sections must match it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Final, ParamSpec, Protocol, TypeVar

from coordinator.mux.catalog_types import CutTaken, Snapshot, TaskSnapshot
from coordinator.mux.stage import Stage
from coordinator.snapshot.errors import (
    ConflictingManifest,
    CopyNotWritten,
    GenerationDamaged,
    NoIntactCopy,
)
from coordinator.snapshot.pacing import SnapshotPace, Steps
from coordinator.snapshot.sections import (
    GenerationFailed,
    SectionHead,
    SectionSource,
    SectionUnavailable,
    head_of,
)
from viewstamp.api.domain.v1 import domain_service_pb2 as domain_pb2
from viewstamp.format import FormatError
from viewstamp.format.block import Block

RETRY_DELAY_MS: Final = 100
# These only make a generation fail. A failed sync is not among them: it ends the process.
FAILING: Final = (
    NoIntactCopy,
    ConflictingManifest,
    CopyNotWritten,
    FormatError,
    GenerationDamaged,
)

P = ParamSpec("P")
T = TypeVar("T")
S = TypeVar("S", bound="SectionFileWriter")
# Tells the orchestrator what was written: generation and tasks.
Report = Callable[[int, Sequence[TaskSnapshot]], None]

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LocalCut:
    """A cut, and what else its manifest names.

    `checksum` (16 bytes) is that of its prepare, `parent` the last completed generation before it,
    generation 0 for none.
    """

    taken: CutTaken
    checksum: bytes
    parent: Snapshot


@dataclass(frozen=True, slots=True)
class Durable:
    """A generation whose manifest and layers are verified here, three copies each."""

    generation: int
    cut_op: int
    cut_checksum: bytes
    root: bytes
    tasks: tuple[TaskSnapshot, ...]


class _OtherHead(Exception):  # noqa: N818  A detour, not an error.
    """The section is a delta against another generation, or of another version, than expected.

    The layer's header, written before the summary came, names the expected ones. They can be wrong
    after a service has restarted from a newer generation than the others.
    """

    def __init__(self, head: SectionHead) -> None:
        self.head = head


class SectionFileWriter(Protocol):
    """The layer of one section (`section_writer.SectionWriter`). All but `add` block."""

    def add(self, block: Block) -> bool:
        """Hold the next block; return whether it is time to `write`."""
        ...

    def write(self) -> None:
        """Write the held blocks."""
        ...

    def discard(self) -> None:
        """Delete what was written; the section is begun anew, or not at all."""
        ...


class GenerationFilesWriter(Protocol[S]):
    """The files of one generation; sections are written from many threads."""

    def section(self, stage: Stage, head: SectionHead) -> S:
        """Begin a section. Does not block, unlike the others."""
        ...

    def finish_section(
        self, stage: Stage, section: S, summary: domain_pb2.SectionSummary
    ) -> TaskSnapshot:
        """Make the layer durable in every copy."""
        ...

    def finish(self) -> bytes:
        """Write the manifest, once every section is finished; return the root, 32 bytes."""
        ...


class GenerationFiles(Protocol):
    """The snapshot files of this replica. All methods block.

    Errors in FAILING, and GenerationFailed, fail the generation; any other error ends the process.
    """

    def find(self, generation: int) -> Durable | None:
        """Return a generation whose manifest is here, verified."""
        ...

    def begin(self, cut: LocalCut) -> GenerationFilesWriter[Any]:
        """Begin to write a generation."""
        ...

    def delete(self, generation: int) -> None:
        """Delete the files that only this generation has, if any."""
        ...


class LocalWork:
    """Makes generations durable; `wait` returns when a service that was away may be asked again."""

    def __init__(
        self,
        source: SectionSource,
        files: GenerationFiles,
        wait: Callable[[Stage], Awaitable[None]] | None = None,
        pace: SnapshotPace | None = None,
    ) -> None:
        self._pace = pace or SnapshotPace()
        self._source = source
        self._files = files
        self._wait = wait or _pause

    async def make_durable(self, cut: LocalCut, tasks: Sequence[Stage], report: Report) -> bytes:
        """Write a generation, reporting each task; return its root. Raises GenerationFailed."""
        await self._pace.begin_generation()
        steps = self._pace.begin()
        writer = await _failing(self._writer, cut)
        await steps.rest()
        await all_or_none(self._section(writer, stage, cut, report) for stage in tasks)
        steps = self._pace.begin()
        root: bytes = await _failing(writer.finish)
        await steps.rest()
        return root

    async def delete(self, generation: int) -> None:
        """Delete the local files of a generation that will never be used."""
        await in_thread(self._files.delete, generation)

    def _writer(self, cut: LocalCut) -> GenerationFilesWriter[Any]:
        generation = cut.taken.generation
        found = self._files.find(generation)
        if found is not None and _is_of(found, cut):
            return _Comparison(found)
        if found is not None:
            _log.warning(
                "generation %d was cut at another op before: it is written again", generation
            )
            self._files.delete(generation)
        return self._files.begin(cut)

    async def _section(
        self, writer: GenerationFilesWriter[Any], stage: Stage, cut: LocalCut, report: Report
    ) -> None:
        head = self._source.expected(stage, cut.taken)
        while True:
            try:
                async with self._pace.turn() as steps:
                    task = await self._section_once(writer, stage, cut.taken, head, steps)
            except SectionUnavailable as why:
                _log.warning("section %s is read again: %s", stage.name.lower(), why)
                await self._wait(stage)
            except _OtherHead as other:
                _log.warning("section %s is read again: it begins as %s", stage.name, other.head)
                head = other.head
            else:
                report(cut.taken.generation, (task,))
                return

    async def _section_once(
        self,
        writer: GenerationFilesWriter[Any],
        stage: Stage,
        cut: CutTaken,
        head: SectionHead,
        steps: Steps,
    ) -> TaskSnapshot:
        section = writer.section(stage, head)
        try:
            summary = await self._copy(section, stage, cut, steps)
            _check_summary(summary, stage, cut)
            # It contains everything up to the cut. What the machine applied last depends on the
            # base of a restart, and a report must not.
            summary.applied_revision = cut.revision
            if (found := head_of(summary)) != head:
                raise _OtherHead(found)
            await steps.rest()
        except BaseException:
            await in_thread(section.discard)
            raise
        task = await _failing(writer.finish_section, stage, section, summary)
        await steps.rest()
        return task

    async def _copy(
        self, section: SectionFileWriter, stage: Stage, cut: CutTaken, steps: Steps
    ) -> domain_pb2.SectionSummary:
        """Write the blocks of a section; return its summary."""
        async with aclosing(self._source.read(stage, cut)) as parts:
            async for part in parts:
                if isinstance(part, domain_pb2.SectionSummary):
                    return part
                if section.add(part):
                    await _failing(section.write)
                    await steps.rest()
        raise GenerationFailed(f"the {stage.name.lower()} section ended without a summary")


class _Comparison:
    """Stands in for a writer if the generation is already durable."""

    def __init__(self, durable: Durable) -> None:
        self._durable = durable
        self._tasks = {task.stage: task for task in durable.tasks}

    def section(self, stage: Stage, head: SectionHead) -> SectionFileWriter:
        """Return a writer that drops the blocks: the digest is enough to compare."""
        return _NothingWritten()

    def finish_section(
        self, stage: Stage, section: SectionFileWriter, summary: domain_pb2.SectionSummary
    ) -> TaskSnapshot:
        """Return the task that was written before. Raises GenerationFailed if it differs."""
        task = self._tasks[stage]
        if summary.state_digest != task.state_digest:
            raise GenerationFailed(
                f"generation {self._durable.generation} is durable here with the digest"
                f" {task.state_digest.hex()} of {stage.name.lower()}, and the same"
                f" log led to {summary.state_digest.hex()} now: run `viewstamp snapshot verify`"
            )
        return task

    def finish(self) -> bytes:
        """Return the stored root: everything that it covers was found equal."""
        return self._durable.root


class _NothingWritten:
    def add(self, block: Block) -> bool:
        return False

    def write(self) -> None:
        pass

    def discard(self) -> None:
        pass


def _is_of(found: Durable, cut: LocalCut) -> bool:
    return (found.cut_op, found.cut_checksum) == (cut.taken.op, cut.checksum)


def _check_summary(summary: domain_pb2.SectionSummary, stage: Stage, cut: CutTaken) -> None:
    """Raise GenerationFailed unless the section was frozen at this cut."""
    name = stage.name.lower()
    if summary.generation != cut.generation:
        raise GenerationFailed(
            f"section {name} is of generation {summary.generation}, not {cut.generation}"
        )
    if summary.applied_revision > cut.revision:
        raise GenerationFailed(
            f"section {name} goes up to revision {summary.applied_revision}, beyond the cut at"
            f" {cut.revision}"
        )


async def in_thread(call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run a blocking call in a thread; even if cancelled, wait until it has ended.

    Otherwise a call that everybody takes for cancelled could still write to files.
    """
    running = asyncio.ensure_future(asyncio.to_thread(call, *args, **kwargs))
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        await asyncio.wait([running])
        if not running.cancelled() and (error := running.exception()) is not None:
            _log.warning("a cancelled call failed, too: %s", error)
        raise


async def _failing(call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run a blocking call as `in_thread` does; turn errors in FAILING into GenerationFailed."""
    try:
        return await in_thread(call, *args, **kwargs)
    except FAILING as error:
        raise GenerationFailed(str(error)) from error


async def all_or_none(work: Any) -> None:
    """Run coroutines at the same time; the first failure ends the others and is raised."""
    coroutines: list[Coroutine[Any, Any, None]] = list(work)
    tasks = [asyncio.ensure_future(coroutine) for coroutine in coroutines]
    try:
        await asyncio.gather(*tasks)
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise


async def _pause(_: Stage) -> None:
    await asyncio.sleep(RETRY_DELAY_MS / 1000)
