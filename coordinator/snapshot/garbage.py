"""Removing files without a reference: manifests of generations that nobody keeps, and their layers.

Roots are the generations of the catalog, the one that the superblock names, every generation above
that (it is being written, or waits for its decision, or for `delete`), and pins: layers in use that
no manifest names yet, or any more.

A layer is pinned before it gets its name, and stays pinned until the manifest that names it is
durable. Collecting holds the same mutex from reading the manifests to its last removal. So a layer
that somebody found and is about to name is never removed in between. Manifests go first, durably; a
crash in between leaves layers without a manifest, never the other way round.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import TypeVar

from coordinator.snapshot.copies import CopyDirectories
from coordinator.snapshot.errors import NoIntactCopy
from coordinator.snapshot.layout import LAYERS, MANIFESTS, layer_file, manifest_file
from coordinator.snapshot.restore import read_manifest
from coordinator.snapshot.writer_process import FileWriter
from viewstamp.api.snapshots.v1.manifest_pb2 import SnapshotManifest
from viewstamp.format import FormatError
from viewstamp.format.layer_parts import HEADER_BYTES, decode_header
from viewstamp.format.manifest import digest_of, generation_of, sections

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Collected:
    """What was removed. `postponed`: layers were left alone, since a compaction is under way.

    `unreadable` says what is wrong with each kept manifest without an intact copy.
    """

    generations: tuple[int, ...]
    layers: tuple[bytes, ...]
    postponed: bool
    unreadable: tuple[str, ...] = ()


class Pins:
    """Layers and manifests in use, by user. Holding `mutex` keeps collection out."""

    def __init__(self) -> None:
        self.mutex = threading.RLock()
        self._held: dict[object, set[bytes]] = {}
        self._generations: dict[object, int] = {}

    def add(self, owner: object, digests: Iterable[bytes]) -> None:
        """Keep layers until the owner is released; waits for a collection under way."""
        with self.mutex:
            self._held.setdefault(owner, set()).update(digests)

    def add_generation(self, owner: object, manifest: SnapshotManifest) -> None:
        """Keep a manifest and its layers until the owner is released."""
        with self.mutex:
            self._generations[owner] = manifest.generation
            self.add(owner, layers_of(manifest))

    def release(self, owner: object) -> None:
        """Stop keeping them. Releasing twice is harmless."""
        with self.mutex:
            self._held.pop(owner, None)
            self._generations.pop(owner, None)

    def generations(self) -> set[int]:
        """Return the generations whose manifests somebody uses."""
        with self.mutex:
            return set(self._generations.values())

    def digests(self) -> set[bytes]:
        """Return every layer that somebody uses."""
        with self.mutex:
            return set[bytes]().union(*self._held.values())


def layers_of(manifest: SnapshotManifest) -> dict[bytes, int]:
    """Return the layers that a manifest names: size in bytes by digest."""
    return {
        reference.digest: reference.size_bytes
        for _, section in sections(manifest)
        for reference in section.layers
    }


def stored_generations(copies: CopyDirectories) -> list[int]:
    """Return the generations of which any directory has a manifest, ascending."""
    return sorted(_parsed(copies.names(MANIFESTS), generation_of))


def stored_layers(copies: CopyDirectories) -> list[bytes]:
    """Return the digests of the layers that any directory has, ascending."""
    return sorted(_parsed(copies.names(LAYERS), digest_of))


def collect(
    copies: CopyDirectories,
    writer: FileWriter,
    cluster_id: bytes,
    pins: Pins,
    live: Collection[int],
    adopted: int,
    known: dict[int, frozenset[bytes]],
    *,
    is_compacting: bool,
) -> Collected:
    """Remove files without a root, durably, in every directory.

    `known` are the layers of kept manifests that were read or written before; it is updated. The
    layers of a kept but unreadable manifest are unknown, but no layer is older than the first
    manifest that names it. So all layers up to that generation stay until the manifest is brought
    back or its generation is no longer kept; the others go.
    """
    copies.local.check_usable()
    with pins.mutex:
        stored = stored_generations(copies)
        kept = pins.generations().union(live)
        dead = [each for each in stored if each < adopted and each not in kept]
        if dead:
            writer.delete([manifest_file(generation) for generation in dead])
        if is_compacting:
            return Collected(tuple(dead), (), postponed=True)
        for generation in dead:
            known.pop(generation, None)
        named = pins.digests()
        unreadable: dict[int, str] = {}
        for generation in stored:
            if generation in dead:
                continue
            if generation not in known:
                try:
                    manifest = read_manifest(copies, cluster_id, generation)
                except NoIntactCopy as error:
                    unreadable[generation] = str(error)
                    continue
                known[generation] = frozenset(layers_of(manifest))
            named.update(known[generation])
        unnamed = [digest for digest in stored_layers(copies) if digest not in named]
        if unreadable:
            newest = max(unreadable)
            unnamed = [digest for digest in unnamed if _generation(copies, digest) > newest]
        if unnamed:
            writer.delete([layer_file(digest) for digest in unnamed])
        return Collected(tuple(dead), tuple(unnamed), False, tuple(unreadable.values()))


def _generation(copies: CopyDirectories, digest: bytes) -> int:
    """Return the generation that a layer was written for; 0 if no copy tells."""
    for copy in range(len(copies.directories)):
        with contextlib.suppress(FormatError, OSError):
            return decode_header(
                copies.read_part(copy, layer_file(digest), HEADER_BYTES)
            ).generation
    return 0


def _parsed(names: Iterable[str], parse: Callable[[str], T]) -> Iterator[T]:
    """Yield the parsed names; other files are not ours and stay."""
    for name in names:
        with contextlib.suppress(FormatError):
            yield parse(name)
