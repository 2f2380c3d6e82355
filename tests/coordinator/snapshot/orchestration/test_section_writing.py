"""Sections written into real files in pieces: memory in use, aborted writes, and full disks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import pytest

from coordinator.mux.catalog_types import CutTaken
from coordinator.mux.stage import Stage
from coordinator.snapshot import section_writer, values
from coordinator.snapshot.generation_writer import StoredGenerations
from coordinator.snapshot.sections import GenerationFailed, SectionHead, SectionPart
from coordinator.snapshot.work import LocalCut, LocalWork
from testkit.generation_builders import COPY_DIRECTORIES, memory, open_files, value
from testkit.journal_builders import CLUSTER_ID
from testkit.memory_storage import MemoryStorage
from tests.coordinator.snapshot.orchestration.orchestra import CHECKSUM, Frozen
from viewstamp.format.block import compress, raw_blocks
from viewstamp.format.section import SectionEntry

HELD_BYTES_MAX = 1_000
ENTITY_BYTES = 400
BLOCKS = 12


class Blocks:
    """A section of many small blocks, which never ends."""

    def __init__(self) -> None:
        self.sent = asyncio.Event()

    def expected(self, stage: Stage, cut: CutTaken) -> SectionHead:
        """Say that it is a base."""
        return SectionHead(1, 0)

    async def read(self, stage: Stage, cut: CutTaken) -> AsyncGenerator[SectionPart]:
        """Yield the blocks, and wait."""
        for number in range(BLOCKS):
            key = b"%04d" % number
            entry = SectionEntry(1, key, value(number, size_bytes=ENTITY_BYTES))
            (raw,) = raw_blocks([entry])
            yield compress(raw)
        self.sent.set()
        await asyncio.Event().wait()


def in_the_making(storage: MemoryStorage) -> dict[str, int]:
    """Return the temporary files, and the bytes of each."""
    return {path: len(storage.content(path)) for path in storage.paths() if path.endswith(".tmp")}


@pytest.fixture
def storage(monkeypatch: pytest.MonkeyPatch) -> MemoryStorage:
    """A disk, and a limit that every section exceeds."""
    monkeypatch.setattr(section_writer, "HELD_BYTES_MAX", HELD_BYTES_MAX)
    return memory()


def writing(storage: MemoryStorage, source: Blocks) -> asyncio.Task[bytes]:
    """Begin to write a generation of one section."""
    work = LocalWork(
        source, StoredGenerations(open_files(storage, reserve_bytes_min=0), CLUSTER_ID)
    )
    cut = CutTaken(1, 5, 2, 77, 5_000, 1, Frozen(1), Frozen(1))
    durable = work.make_durable(
        LocalCut(cut, CHECKSUM, values.initial()), [Stage.USERS], lambda *_: None
    )
    return asyncio.ensure_future(durable)


async def test_a_large_section_is_written_as_it_comes(storage: MemoryStorage) -> None:
    """At most the limit and one block are held in memory; a cancelled write leaves nothing
    behind."""
    source = Blocks()
    task = writing(storage, source)
    await source.sent.wait()
    written = in_the_making(storage)
    assert len(written) == len(COPY_DIRECTORIES)
    held_bytes_max = HELD_BYTES_MAX + 2 * ENTITY_BYTES
    assert min(written.values()) >= BLOCKS * ENTITY_BYTES - held_bytes_max
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert in_the_making(storage) == {}


async def test_a_disk_that_fills_up_fails_the_generation(storage: MemoryStorage) -> None:
    """A disk that fills up within a section fails only the generation, and no half file is left."""
    storage.capacities_bytes[COPY_DIRECTORIES[1]] = 2 * HELD_BYTES_MAX
    with pytest.raises(GenerationFailed, match=r"writing copies/b/.*free space"):
        await writing(storage, Blocks())
    assert in_the_making(storage) == {}
