"""The files of a snapshot as callers and other replicas are sent them."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class SnapshotFile:
    """A file of a generation: `name` below the copy directories, as in `layers/<digest>.layer`."""

    name: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class CopyVerdicts:
    """The result of checking the copies of one file.

    `copies` has a text per copy directory, in order: "intact", or what was wrong and what was done
    about it. `problems` names what could not be repaired; empty if every copy is now intact.
    """

    file: str
    copies: tuple[str, ...]
    problems: tuple[str, ...] = ()


class PinnedFiles(Protocol):
    """The files of a generation, which stay in place while it is pinned."""

    @property
    def files(self) -> Sequence[SnapshotFile]:
        """Every file, the manifest last."""
        ...

    def read(
        self, file: SnapshotFile, chunk_bytes: int, offset: int = 0, *, is_verified: bool = False
    ) -> AsyncGenerator[bytes, None]:
        """Yield a file from `offset` on in chunks of at most `chunk_bytes`, from a copy that is
        verified whole first, unless `is_verified` says that it was a moment ago.

        Raises Refusal if no copy is intact.
        """
        ...

    def verify(self) -> AsyncGenerator[CopyVerdicts, None]:
        """Check every copy of every file, repair what can be repaired, and yield verdicts."""
        ...

    async def check_sections(self) -> Sequence[str]:
        """Recompute every section's digest from its layers; return what does not fit."""
        ...


class SnapshotProvider(Protocol):
    """The snapshot files of this replica."""

    def pinned(self, generation: int) -> AbstractAsyncContextManager[PinnedFiles]:
        """Keep the files of a generation from being deleted while the context is open.

        Raises Refusal SNAPSHOT_NOT_FOUND if this replica does not hold it.
        """
        ...
