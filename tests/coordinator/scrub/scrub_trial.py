"""A replica's disk with journal, superblock and snapshots, and a scrubber that goes round it."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Callable, Collection
from typing import TypeVar

from coordinator.journal import Journal
from coordinator.replica.superblock_file import SuperblockFile
from coordinator.scrub.ports import BringFile, ScrubAlarm, ScrubPorts
from coordinator.scrub.scrubber import Scrubber
from coordinator.snapshot.files import SnapshotFiles
from coordinator.snapshot.layout import LAYERS, MANIFESTS
from testkit.generation_builders import COPY_DIRECTORIES, Repairs, Sections, entities, open_files
from testkit.journal_builders import CLUSTER_ID, chain, create
from testkit.memory_storage import MemoryStorage
from viewstamp.api.snapshots.v1.manifest_pb2 import SnapshotManifest
from viewstamp.format.superblock import SuperblockState

Result = TypeVar("Result")

SUPERBLOCK = "data/superblock"
INTERVAL_MS = 20
ENTRIES = 6
NEWEST = 2
TURNS_MAX = 200_000


class ReadHooks(MemoryStorage):
    """A disk whose reads fail, or let something else happen first."""

    def __init__(self) -> None:
        super().__init__()
        self.unreadable: set[str] = set()
        self.before_read: Callable[[str], None] = lambda path: None
        self.open_errors: dict[str, int] = {}

    def check_read(self, path: str, offset: int, size: int) -> None:
        """Raise what a read of these bytes shall raise."""
        self.before_read(path)
        if path in self.unreadable:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    def names(self, directory: str) -> list[str]:
        """The names in a directory that is there."""
        number = self.open_errors.get(directory)
        if number is not None:
            raise OSError(number, os.strerror(number))
        return super().names(directory)


class InlineThread:
    """Runs calls at once, unless it `hangs`."""

    def __init__(self) -> None:
        self.hangs = False
        self.waiting: list[asyncio.Future[None]] = []

    def call(self, function: Callable[[], Result]) -> asyncio.Future[Result]:
        """Return a future of the result."""
        future: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        if self.hangs:
            self.waiting.append(asyncio.ensure_future(self._later(function, future)))
            return future
        self._run(function, future)
        return future

    async def _later(self, function: Callable[[], Result], future: asyncio.Future[Result]) -> None:
        while self.hangs:  # noqa: ASYNC110  a flag is enough
            await asyncio.sleep(0.001)
        self._run(function, future)

    def _run(self, function: Callable[[], Result], future: asyncio.Future[Result]) -> None:
        try:
            future.set_result(function())
        except Exception as error:
            future.set_exception(error)

    def abandon(self) -> None:
        """Nothing is under way."""

    def close(self) -> None:
        """Nothing is under way."""


class InlineWriter:
    """The journal's thread, at once."""

    async def call(self, function: Callable[[], Result]) -> Result:
        """Run a call."""
        return function()


class KeptAlarms:
    """Alarms by kind and subject."""

    def __init__(self) -> None:
        self.raised: dict[tuple[ScrubAlarm, str], str] = {}
        self.ever: list[str] = []

    def tell(self, kind: ScrubAlarm, text: str, subject: str = "") -> None:
        """Raise an alarm."""
        self.raised[kind, subject] = text
        self.ever.append(text)

    def clear(self, kind: ScrubAlarm, subject: str = "") -> None:
        """End it."""
        self.raised.pop((kind, subject), None)

    def keep_files(self, names: Collection[str]) -> None:
        """End those of other files."""
        for kind, subject in list(self.raised):
            if kind is ScrubAlarm.COPY_BAD and subject not in names:
                del self.raised[kind, subject]

    def texts(self, kind: ScrubAlarm) -> list[str]:
        """Return what alarms of a kind say."""
        return [text for (each, _), text in self.raised.items() if each is kind]


class ScrubTrial:
    """Everything of one replica, in memory."""

    def __init__(self, *, replica_count: int = 3, bring: BringFile | None = None) -> None:
        self.storage = ReadHooks()
        self.storage.make_directory("copies")
        self.storage.make_directory("data")
        self.journal: Journal = create(self.storage, replica_count=replica_count)
        self.journal.append(chain(ENTRIES))
        self.superblock = SuperblockFile(self.storage, SUPERBLOCK, _state(replica_count))
        self.superblock.begin(0, is_damaged=False)
        self.reported = Repairs()
        self.files: SnapshotFiles = open_files(self.storage, self.reported)
        self.sections = Sections(self.files)
        self.sections.write(1, entities(1, 8))
        self.sections.write(NEWEST, {2: {(1, b"000100"): b"new" * 300}})
        self.alarms = KeptAlarms()
        self.thread = InlineThread()
        self.faulty: list[int] = []
        self.found_faulty: Callable[[int], None] = self.faulty.append
        self.cut_op = 0
        self.in_memory: dict[int, SnapshotManifest] = {}
        self.is_held = False
        self.now_ms = 0
        self.is_lone = replica_count == 1
        self.scrubber = Scrubber(self._ports(bring), INTERVAL_MS)
        self.tally = self.scrubber.tally

    def _ports(self, bring: BringFile | None) -> ScrubPorts:
        return ScrubPorts(
            storage=self.storage,
            thread=self.thread,
            superblock=self.superblock,
            journal=self.journal,
            writer=InlineWriter(),
            files=self.files,
            is_lone=lambda: self.is_lone,
            cut_op=lambda: self.cut_op,
            found_faulty=lambda op: self.found_faulty(op),  # noqa: PLW0108  tests exchange it
            manifest_of=self.in_memory.get,
            is_held=lambda: self.is_held,
            is_busy=lambda: False,
            alarms=self.alarms,
            bring=bring,
            clock_ms=self._clock_ms,
            wall_clock_us=lambda: 1,
        )

    def _clock_ms(self) -> int:
        """Let each look at the clock take as long as a rest, so that nothing waits."""
        self.now_ms += INTERVAL_MS
        return self.now_ms

    async def passes(self, count: int = 1) -> None:
        """Let the scrubber go round so many more times."""
        wanted = self.tally.passes + count
        await self.until(lambda: self.tally.passes >= wanted)

    async def until(self, holds: Callable[[], bool]) -> None:
        """Let the scrubber run until something holds. Raises what ends it."""
        running = asyncio.ensure_future(self.scrubber.run())
        try:
            for _ in range(TURNS_MAX):
                if holds() or running.done():
                    break
                await asyncio.sleep(0)
        finally:
            if running.done():
                running.result()
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
        assert holds(), "it never came to that"

    # --- Damage ---

    def names(self, folder: str = LAYERS) -> list[str]:
        """Return the names of layers, or of manifests."""
        return [f"{folder}/{name}" for name in self.files.copies.names(folder)]

    def rot(self, name: str, *copies: int) -> None:
        """Flip a byte of some copies of a snapshot file, by default of all."""
        for copy in copies or range(len(COPY_DIRECTORIES)):
            self.storage.flip(f"{COPY_DIRECTORIES[copy]}/{name}", 40)

    def manifest(self) -> str:
        """Return the name of the newest manifest."""
        return self.names(MANIFESTS)[-1]

    def is_whole(self, name: str) -> bool:
        """Whether all copies of a file are there and equal."""
        paths = [f"{directory}/{name}" for directory in COPY_DIRECTORIES]
        contents = {self.storage.content(path) for path in paths if self.storage.exists(path)}
        return all(self.storage.exists(path) for path in paths) and len(contents) == 1


def _state(replica_count: int) -> SuperblockState:
    return SuperblockState(
        CLUSTER_ID, 0, replica_count, view=0, log_view=0, commit_max=ENTRIES, generation=0
    )
