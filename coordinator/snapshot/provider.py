"""The files of a generation for the gateway: pinned, read from intact copies, verified."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager

from coordinator.gateway.snapshot_streams import CopyVerdicts, PinnedGeneration, SnapshotFile
from coordinator.snapshot.errors import AllCopiesBad, GenerationDamaged
from coordinator.snapshot.files import SnapshotFiles
from coordinator.snapshot.layout import layer_file, manifest_file
from coordinator.snapshot.restore import Loaded, StoredLayer
from coordinator.snapshot.verify import FileVerdict
from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.errors import Refusal
from viewstamp.format.manifest import encode_manifest, sections


class StoredSnapshots:
    """The generations of this replica (`gateway.snapshot_streams.SnapshotProvider`)."""

    def __init__(self, files: SnapshotFiles) -> None:
        self._files = files

    def pinned(self, generation: int) -> AbstractAsyncContextManager[PinnedGeneration]:
        """Keep a generation's files while the context is open. Raises Refusal."""
        return self._pinned(generation)

    @asynccontextmanager
    async def _pinned(self, generation: int) -> AsyncGenerator[PinnedGeneration]:
        if generation not in await asyncio.to_thread(self._files.generations):
            raise Refusal(
                Reason.REASON_SNAPSHOT_NOT_FOUND,
                f"this replica does not hold the files of snapshot {generation}",
                generation=generation,
            )
        try:
            loaded = await asyncio.to_thread(self._files.load, generation)
        except (AllCopiesBad, GenerationDamaged) as error:
            raise Refusal(
                Reason.REASON_REPLICA_DIVERGED, str(error), generation=generation
            ) from error
        try:
            yield StoredGeneration(self._files, loaded)
        finally:
            await asyncio.to_thread(loaded.close)


class StoredGeneration:
    """The files of one generation that is held open."""

    def __init__(self, files: SnapshotFiles, loaded: Loaded) -> None:
        self._files = files
        self._generation = loaded.manifest.generation
        self._manifest = encode_manifest(loaded.manifest)
        self._layers: dict[str, StoredLayer] = {
            layer_file(reference.digest): layer
            for stage, section in sections(loaded.manifest)
            for reference, layer in zip(section.layers, loaded.layers[stage], strict=True)
        }

    @property
    def files(self) -> Sequence[SnapshotFile]:
        """Every file, the manifest last."""
        layers = [SnapshotFile(name, layer.file_bytes()) for name, layer in self._layers.items()]
        return [*layers, SnapshotFile(manifest_file(self._generation), len(self._manifest))]

    async def read(self, file: SnapshotFile, chunk_bytes: int) -> AsyncGenerator[bytes]:
        """Yield a file in chunks."""
        layer = self._layers.get(file.name)
        for offset in range(0, file.size_bytes, chunk_bytes):
            if layer is None:
                yield self._manifest[offset : offset + chunk_bytes]
            else:
                yield await asyncio.to_thread(layer.read_file, offset, chunk_bytes)

    async def verify(self) -> AsyncGenerator[CopyVerdicts]:
        """Look at every copy of every file, and repair what can be repaired."""
        verdicts = self._files.scrub(self._generation)
        while (verdict := await asyncio.to_thread(_next, verdicts)) is not None:
            yield verdict

    async def check_sections(self) -> Sequence[str]:
        """Recompute every digest from the layers; return what does not fit."""
        try:
            return await asyncio.to_thread(self._files.problems, self._generation)
        except (AllCopiesBad, GenerationDamaged) as error:
            return [str(error)]


def _next(verdicts: Iterator[FileVerdict]) -> CopyVerdicts | None:
    verdict = next(verdicts, None)
    if verdict is None:
        return None
    copies = tuple(map(str, verdict.copies))
    bad = [str(copy) for copy in verdict.copies if not copy.is_intact]
    problems = tuple(f"{verdict.name}: {what}" for what in bad)
    return CopyVerdicts(verdict.name, copies, problems)
