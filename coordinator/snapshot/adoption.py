"""Makes a generation the one that the replica restarts from, and releases what it replaces.

A crash relies on the order: the superblock first, durably; then nothing needs the state before the
cut, and stages, item logs and journal forget it; then the files of deleted generations are removed.
A crash in between leaves too much, never too little.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from coordinator.mux.stage import Stage
from coordinator.snapshot.bases import section_bases
from coordinator.snapshot.errors import (
    CompactionFailed,
    CopyNotWritten,
    GenerationDamaged,
    NoIntactCopy,
)
from coordinator.snapshot.files import SnapshotFiles
from coordinator.snapshot.pacing import SnapshotPace, Steps
from coordinator.stages.base import InstalledSection
from viewstamp.api.snapshots.v1.manifest_pb2 import SnapshotManifest
from viewstamp.telemetry import fields

T = TypeVar("T")

_log = logging.getLogger(__name__)


class AdoptingService(Protocol):
    """The way to one service (`stages.client.StageClient`)."""

    def move_base(self, base: InstalledSection) -> None:
        """Start from this section from now on."""
        ...

    def exchange_base(self, base: InstalledSection) -> None:
        """Start from these layers of the same section, if it is still the base."""
        ...


class AdoptionWriter(Protocol):
    """The thread that writes journal and superblock."""

    async def call(self, function: Callable[[], T]) -> T:
        """Run a call between the writes."""
        ...


@dataclass(frozen=True, slots=True)
class AdoptionPorts:
    """What an adoption changes.

    `record` makes (generation, cut op) durable in the superblock, `truncate` drops the journal
    before an op; both block. `release` is told of the generation, `kept` returns the generations
    whose files must stay, `copied` is told where a generation lies; `freed` returns once the
    journal has taken the available room, before the reserve for snapshots does. `start` runs work
    in the background; its failure ends the process. `compacted` is told of the generation, the
    stage, when the merge began (nanoseconds since 1970) and its bytes. `unreadable` is told, after
    each collection, of kept manifests without an intact copy.
    """

    writer: AdoptionWriter
    record: Callable[[int, int], None]
    truncate: Callable[[int], int]
    services: Mapping[Stage, AdoptingService]
    release: Callable[[int], None]
    kept: Callable[[], Collection[int]]
    copied: Callable[[int, Sequence[str]], None]
    freed: Callable[[], Awaitable[None]]
    start: Callable[[Coroutine[Any, Any, None]], None]
    compacted: Callable[[int, Stage, int, int], None] = lambda *_: None
    unreadable: Callable[[Sequence[str]], None] = lambda _: None
    pace: SnapshotPace = field(default_factory=SnapshotPace)


class Adoption:
    """Adopts generations, one at a time; collects garbage once the journal was replayed.

    Garbage waits because a restart begins with the catalog of the cut, which does not know the
    generations kept since.
    """

    def __init__(self, files: SnapshotFiles, ports: AdoptionPorts) -> None:
        self._files = files
        self._ports = ports
        self._adopted: SnapshotManifest | None = None
        self._is_replayed = False
        self._is_compacting = False
        self._cleaning = asyncio.Lock()
        # From reading a manifest until the services have its layers.
        self._taking_over = asyncio.Lock()

    def start_from(self, manifest: SnapshotManifest | None) -> None:
        """Begin with the generation from which the replica was restored."""
        self._adopted = manifest

    @property
    def adopted(self) -> SnapshotManifest | None:
        """The generation from which this process would restart, None for the empty state."""
        return self._adopted

    async def adopt(self, generation: int) -> None:
        """Restart from `generation` from now on. A failure must end the process."""
        ports = self._ports
        steps = ports.pace.begin()
        async with self._taking_over:
            manifest = await self._take_over(generation, steps)
        await steps.rest()
        dropped = await ports.writer.call(lambda: ports.truncate(manifest.cut_op + 1))
        ports.copied(generation, self._files.directories)
        _log.info(
            "snapshot adopted",
            extra=fields(generation=generation, cut_op=manifest.cut_op, segments_dropped=dropped),
        )
        await steps.rest()
        await self.clean()

    async def _take_over(self, generation: int, steps: Steps) -> SnapshotManifest:
        ports = self._ports
        manifest = await asyncio.to_thread(self._files.written_manifest, generation)
        assert manifest is not None, f"generation {generation} is durable here, and is not"
        await steps.rest()
        await asyncio.to_thread(ports.record, generation, manifest.cut_op)
        await steps.rest()
        for stage, base in section_bases(self._files, manifest).items():
            ports.services[stage].move_base(base)
        ports.release(generation)
        self._adopted = manifest
        return manifest

    async def exchanged(self, generation: int) -> None:
        """Take over a manifest of the adopted generation that names other layers of the same
        state: those of peers, in the place of damaged ones. An adoption under way comes first."""
        async with self._taking_over:
            await self._exchange(generation)

    async def _exchange(self, generation: int) -> None:
        if self._adopted is None or self._adopted.generation != generation:
            return
        manifest = await asyncio.to_thread(self._files.written_manifest, generation)
        assert manifest is not None, f"generation {generation} was just written"
        for stage, base in section_bases(self._files, manifest).items():
            self._ports.services[stage].exchange_base(base)
        self._adopted = manifest

    async def replayed(self) -> None:
        """Note that the catalog is up to date, and collect what earlier processes left."""
        self._is_replayed = True
        await self.clean()

    async def clean(self) -> None:
        """Remove files that nobody needs, rebuild the reserve, and begin to compact."""
        if not self._is_replayed or self._adopted is None:
            return
        async with self._cleaning:
            steps = self._ports.pace.begin()
            adopted, kept = self._adopted, self._ports.kept()
            try:
                found = await asyncio.to_thread(
                    self._files.collect_garbage, kept, adopted.generation
                )
                self._ports.unreadable(found.unreadable)
            except (NoIntactCopy, CopyNotWritten) as error:
                _log.error("files that no snapshot needs could not be deleted", exc_info=error)
            await self._ports.freed()
            await steps.rest()
            stages = await asyncio.to_thread(self._prepare_next, adopted)
            await steps.rest()
        if stages and not self._is_compacting:
            self._is_compacting = True
            self._ports.start(self._compact_all(adopted, stages))

    def _prepare_next(self, adopted: SnapshotManifest) -> Sequence[int]:
        """Rebuild the reserve; return the stages to compact."""
        try:
            self._files.rebuild_reserve(adopted)
        except CopyNotWritten as error:
            _log.error("the disk space reserve for snapshots is incomplete", exc_info=error)
        return self._files.stages_to_compact(adopted)

    async def _compact_all(self, manifest: SnapshotManifest, stages: Sequence[int]) -> None:
        try:
            steps = self._ports.pace.begin()
            for stage in stages:
                begun_ns = time.time_ns()
                layer = await asyncio.to_thread(self._files.compact, manifest, stage)
                self._ports.compacted(manifest.generation, Stage(stage), begun_ns, layer.size_bytes)
                _log.info("section compacted", extra=fields(stage=stage, bytes=layer.size_bytes))
                await steps.rest()
        except (NoIntactCopy, CompactionFailed, CopyNotWritten, GenerationDamaged) as error:
            # The chain is as good as before; the next adoption tries again.
            _log.warning("a section was not compacted", extra=fields(why=str(error)))
        finally:
            self._is_compacting = False
