"""What the files of a snapshot look like to those who send them on: callers and other replicas."""

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
    """What a look at the copies of one file found.

    `copies` has a text per copy directory, in order: "intact", or what was wrong and what was done
    about it. `problems` names what could not be made good; empty if every copy is intact by now.
    """

    file: str
    copies: tuple[str, ...]
    problems: tuple[str, ...] = ()


class PinnedFiles(Protocol):
    """The files of a generation, which stay where they are as long as it is pinned."""

    @property
    def files(self) -> Sequence[SnapshotFile]:
        """Every file, the manifest last."""
        ...

    def read(self, file: SnapshotFile, chunk_bytes: int) -> AsyncGenerator[bytes, None]:
        """Yield a file in chunks of at most `chunk_bytes`, from a copy that was verified whole.

        Raises Refusal if no copy is good.
        """
        ...

    def verify(self) -> AsyncGenerator[CopyVerdicts, None]:
        """Look at every copy of every file, repair what can be repaired, and yield verdicts."""
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
