"""The files of a generation for the gateway's streams, read and verified in threads."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TypeVar

from coordinator.snapshot import pinned
from coordinator.snapshot.errors import GenerationDamaged, NoIntactCopy
from coordinator.snapshot.files import SnapshotFiles
from coordinator.snapshot.layout import manifest_file
from coordinator.snapshot.ports import CopyVerdicts, PinnedFiles, SnapshotFile
from coordinator.snapshot.verify import LocalFileVerdict
from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.errors import Refusal
from viewstamp.format.manifest import encode_manifest

T = TypeVar("T")


class StoredSnapshots:
    """The generations of this replica (`snapshot.ports.SnapshotProvider`)."""

    def __init__(self, files: SnapshotFiles) -> None:
        self._files = files

    def pinned(self, generation: int) -> AbstractAsyncContextManager[PinnedFiles]:
        """Keep a generation's files while the context is open. Raises Refusal."""
        return self._pinned(generation)

    @asynccontextmanager
    async def _pinned(self, generation: int) -> AsyncGenerator[PinnedFiles]:
        if generation not in await asyncio.to_thread(self._files.generations):
            raise Refusal(
                Reason.REASON_SNAPSHOT_NOT_FOUND,
                f"this replica does not hold the files of snapshot {generation}",
                generation=generation,
            )
        try:
            held = await asyncio.to_thread(self._files.pinned, generation)
        except NoIntactCopy as error:
            raise _unreadable(error, generation) from error
        try:
            yield StoredGeneration(self._files, held)
        finally:
            # It waits for a collection of garbage under way.
            await asyncio.to_thread(held.close)


class StoredGeneration:
    """The files of one pinned generation."""

    def __init__(self, files: SnapshotFiles, held: pinned.PinnedGeneration) -> None:
        self._files = files
        self._held = held
        self._stored = {file.name: file for file in held.files}

    @property
    def files(self) -> Sequence[SnapshotFile]:
        """Every file, the manifest last."""
        return [SnapshotFile(file.name, file.size_bytes) for file in self._held.files]

    async def read(
        self, file: SnapshotFile, chunk_bytes: int, offset: int = 0, *, is_verified: bool = False
    ) -> AsyncGenerator[bytes]:
        """Yield a file from an offset on, in chunks. Raises Refusal if no copy is intact."""
        chunks = self._chunks(file.name, chunk_bytes, offset, is_verified)
        try:
            while (chunk := await asyncio.to_thread(_next, chunks)) is not None:
                yield chunk
        except NoIntactCopy as error:
            raise _unreadable(error, self._held.manifest.generation) from error

    def _chunks(
        self, name: str, chunk_bytes: int, offset: int, is_verified: bool
    ) -> Iterator[bytes]:
        manifest = self._held.manifest
        if name != manifest_file(manifest.generation):
            stored = self._stored[name]
            return self._held.chunks(stored, chunk_bytes, offset, is_verified=is_verified)
        # It was read whole when it was pinned. Its copies are not checked again: a replica that
        # mends its snapshot may be replacing them, and a repair would bring the old one back.
        return _parts(encode_manifest(manifest)[offset:], chunk_bytes)

    async def verify(self) -> AsyncGenerator[CopyVerdicts]:
        """Check every copy of every file, and repair what can be repaired."""
        verdicts = self._held.scrub()
        while (verdict := await asyncio.to_thread(_next, verdicts)) is not None:
            yield _told(verdict)

    async def check_sections(self) -> Sequence[str]:
        """Recompute every digest from the layers; return what does not fit."""
        generation = self._held.manifest.generation
        try:
            return await asyncio.to_thread(self._files.problems, generation)
        except (NoIntactCopy, GenerationDamaged) as error:
            return [str(error)]


def _told(verdict: LocalFileVerdict) -> CopyVerdicts:
    copies = tuple(map(str, verdict.copies))
    bad = (str(copy) for copy in verdict.copies if not copy.is_intact)
    return CopyVerdicts(verdict.name, copies, tuple(f"{verdict.name}: {what}" for what in bad))


def _parts(data: bytes, chunk_bytes: int) -> Iterator[bytes]:
    for begin in range(0, len(data), chunk_bytes):
        yield data[begin : begin + chunk_bytes]


def _next(items: Iterator[T]) -> T | None:
    return next(items, None)


def _unreadable(error: NoIntactCopy, generation: int) -> Refusal:
    return Refusal(Reason.REASON_SNAPSHOT_DAMAGED, str(error), generation=generation)
