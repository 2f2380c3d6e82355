"""Layers of which no copy is intact, as far as the scrubber knows: nothing is built on them."""

from __future__ import annotations

import threading
from collections.abc import Iterable

from coordinator.snapshot.errors import CopyNotWritten
from coordinator.snapshot.layout import layer_file


class UnsoundLayers:
    """Digests of layers. Threads may share it."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._digests: set[bytes] = set()

    def mark(self, digest: bytes, *, is_sound: bool) -> None:
        """Note what was found of a layer."""
        with self._mutex:
            if is_sound:
                self._digests.discard(digest)
            else:
                self._digests.add(digest)

    def has(self, digest: bytes) -> bool:
        """Return whether a layer is marked."""
        with self._mutex:
            return digest in self._digests

    def check(self, generation: int, digests: Iterable[bytes]) -> None:
        """Raise CopyNotWritten if a generation would continue from an unsound layer.

        It could not be read back; and once it was complete, the log and the older snapshots that
        it replaces would be gone.
        """
        with self._mutex:
            found = [digest for digest in digests if digest in self._digests]
        if found:
            raise CopyNotWritten(
                f"generation {generation} would go on from {layer_file(found[0])}, of which no copy"
                " is intact: bring the file back first, as its alarm says"
            )
