"""What goes wrong in a run on files: writers of snapshots die, and no view can be written."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Final

from testkit.world.schedule import NS_PER_MS
from viewstamp.snapshots.catalog_view import CATALOG_VIEW_FILE

if TYPE_CHECKING:
    from collections import Counter

    from testkit.world.replica import WorldReplica
    from testkit.world.snapshot_programs import SnapshotPrograms
    from testkit.world.world import World

_EVERY_MS: Final = (100, 1_500)
_BLOCKED_MS: Final = (300, 3_000)
WRITER_KILLED: Final = "writer of snapshots killed"
VIEW_BLOCKED: Final = "view for tools cannot be written"


class FileTroubles:
    """Strikes now and then until it is told to end."""

    def __init__(self, world: World, counts: Counter[str]) -> None:
        self._world = world
        self._counts = counts
        self._random = Random(f"troubles of files {world.seed}")
        self._programs: SnapshotPrograms | None = None
        self._replicas: list[WorldReplica] = []
        self._in_the_way: set[Path] = set()

    def begin(self, programs: SnapshotPrograms, replicas: list[WorldReplica]) -> None:
        """Strike for the first time after a while."""
        self._programs, self._replicas = programs, replicas
        self._later(_EVERY_MS, self._strike)

    def end(self) -> None:
        """Let all go well."""
        self._programs = None
        for each in list(self._in_the_way):
            self._clear(each)

    def _later(self, within_ms: tuple[int, int], do: Callable[[], None]) -> None:
        delay_ns = self._random.randint(*within_ms) * NS_PER_MS
        self._world.schedule.after(delay_ns, do)

    def _strike(self) -> None:
        if self._programs is None:
            return
        strike = self._random.choice((self._kill_a_writer, self._block_a_view))
        strike(self._programs)
        self._later(_EVERY_MS, self._strike)

    def _kill_a_writer(self, programs: SnapshotPrograms) -> None:
        if programs.running:
            self._note(WRITER_KILLED)
            self._random.choice(programs.running).kill()

    def _block_a_view(self, _: SnapshotPrograms) -> None:
        directory = self._random.choice(self._replicas).directory
        in_the_way = directory / f"{CATALOG_VIEW_FILE}.tmp"
        if directory.is_dir() and not in_the_way.exists():
            self._note(VIEW_BLOCKED)
            in_the_way.mkdir()
            self._in_the_way.add(in_the_way)
            self._later(_BLOCKED_MS, lambda: self._clear(in_the_way))

    def _clear(self, in_the_way: Path) -> None:
        if in_the_way in self._in_the_way:
            self._in_the_way.remove(in_the_way)
            in_the_way.rmdir()

    def _note(self, what: str) -> None:
        self._world.schedule.note("files", what)
        self._counts[what] += 1
