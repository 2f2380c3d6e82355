"""One of the three disks accepts nothing any more: snapshots fail, and the replica goes on."""

from __future__ import annotations

import errno
from collections.abc import Coroutine
from typing import Any

import pytest

from coordinator.mux.catalog_types import FailSnapshot
from coordinator.snapshot.adoption import Adoption, AdoptionPorts
from testkit.generation_builders import (
    COPY_DIRECTORIES,
    Sections,
    entities,
    memory,
    open_files,
)
from testkit.memory_storage import MemoryStorage
from tests.coordinator.snapshot.files.test_snapshot_disk_faults import failing
from tests.coordinator.snapshot.orchestration.test_snapshot_real_files import RealWorld

B = COPY_DIRECTORIES[1]


class ReadOnly(MemoryStorage):
    """Storage that removes nothing below one directory, as Linux does, even if the file is
    absent."""

    read_only: str | None = None

    def unlink(self, path: str) -> None:
        """Remove a file."""
        if self.read_only is not None and path.startswith(self.read_only):
            raise OSError(errno.EROFS, "Read-only file system", path)
        super().unlink(path)


async def test_a_failed_generation_may_stay() -> None:
    """The files of a failed generation cannot be removed; the next one is on the same chain."""
    storage = ReadOnly()
    storage.make_directory("copies")
    world = RealWorld(open_files(storage))
    world.put(1, b"one")
    world.orchestrator.activate()
    await world.snapshot()
    world.orchestrator.deactivate()
    world.put(1, b"two")
    world.begin(2)
    await world.until_durable(2)
    storage.read_only = f"{B}/manifests"

    world.command(FailSnapshot(2, "too slow"))
    await world.settle()

    storage.read_only = None
    world.put(1, b"three")
    states = world.rows_now()
    world.orchestrator.activate()
    assert await world.snapshot() == 3
    world.check(3, states)
    assert world.stored.generations() == [1, 3]


@pytest.mark.parametrize(("verb", "folder"), [("unlink", "layers"), ("create", "reserve")])
async def test_garbage_and_reserve_may_wait(verb: str, folder: str) -> None:
    """A disk that refuses a cleanup, or a reserve, does not end the process."""
    storage = memory()
    files = open_files(storage)
    sections = Sections(files)
    manifest = sections.write(1, entities(1, 3))
    sections.write(2, entities(2, 3))
    files.delete(2)  # this leaves layers that no manifest names
    ports, freed = _ports()
    adoption = Adoption(files, ports)
    adoption.start_from(manifest)
    storage.before_step = failing(verb, f"{B}/{folder}", errno.EROFS)

    await adoption.replayed()

    assert freed == [True]


def _ports() -> tuple[AdoptionPorts, list[bool]]:
    """Return ports of which a cleanup uses only the last ones, and the announcements of room."""
    freed: list[bool] = []

    async def has_room() -> None:
        freed.append(True)

    def unused(*_: object) -> Any:
        raise AssertionError("nothing is adopted here")

    def start(work: Coroutine[Any, Any, None]) -> None:
        work.close()

    ports = AdoptionPorts(
        writer=unused,  # type: ignore[arg-type]
        record=unused,
        truncate=unused,
        services={},
        release=unused,
        kept=lambda: {1},
        copied=unused,
        freed=has_room,
        start=start,
    )
    return ports, freed
