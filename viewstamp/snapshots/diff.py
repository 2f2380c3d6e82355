"""The differences between two generations on disk, of one replica or of two.

Sections with equal digests and versions are equal and are not read. If two chains begin with the
same layers, only the other layers are read whole; the shared ones are read only where an entity is
looked up.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from enum import Enum
from itertools import takewhile
from typing import Any, Final, NamedTuple

from google.protobuf.message import Message

from viewstamp.api.snapshots.v1.manifest_pb2 import LayerReference, SnapshotManifest
from viewstamp.format import FormatError
from viewstamp.format.columns import row_of
from viewstamp.format.digest import DIGEST_BYTES
from viewstamp.format.kinds import KindInfo, withheld
from viewstamp.format.manifest import section_of, sections
from viewstamp.format.merge import merge
from viewstamp.format.section import Position, SectionEntry
from viewstamp.snapshots.copies import BadCopyError
from viewstamp.snapshots.entities import SECTION_NAMES, Entity, decode, decode_whole, kind_of
from viewstamp.snapshots.errors import BadSection
from viewstamp.snapshots.generation import Generation
from viewstamp.snapshots.views import textual

SCANNED_ENTRIES_MAX: Final = 1024
"""How many entries a lookup skips one by one before it uses the index."""
# Fields of the manifest that are equal in the same generation of two replicas of one cluster.
CUT_FIELDS: Final = ("cluster_id", "cut_op", "cut_revision", "timestamp", "feature_level")


class Change(Enum):
    """How an entity of A differs in B."""

    ADDED = "added"
    REMOVED = "removed"
    CHANGED = "changed"


class Pair(NamedTuple):
    """An entity whose bytes differ in A and B; None where a side has no such entity."""

    kind: int
    key: bytes
    a: bytes | None
    b: bytes | None

    @property
    def change(self) -> Change:
        """How it changed from A to B."""
        if self.a is None:
            return Change.ADDED
        return Change.REMOVED if self.b is None else Change.CHANGED


@dataclass(frozen=True, slots=True)
class Difference:
    """An entity that differs. `fields` has the values in A and in B by the path of their names.

    `is_withheld` says that a field differs that is never shown: a secret, or one that this build
    does not know.
    """

    info: KindInfo
    key: bytes
    change: Change
    fields: dict[str, tuple[Any, Any]]
    is_withheld: bool


def different_cut(a: SnapshotManifest, b: SnapshotManifest) -> dict[str, tuple[Any, Any]]:
    """Return how the cuts of two replicas differ; empty if A and B have different numbers.

    Equal generations of one cluster are cut at one op, so a difference is one of the replicas.
    """
    if a.generation != b.generation:
        return {}
    pairs = ((name, getattr(a, name), getattr(b, name)) for name in CUT_FIELDS)
    return {name: (textual(left), textual(right)) for name, left, right in pairs if left != right}


def different_stages(a: SnapshotManifest, b: SnapshotManifest) -> list[int]:
    """Return the stages whose sections differ in digest or version, ascending."""
    stages = {stage for manifest in (a, b) for stage, _ in sections(manifest)}
    pairs = {stage: (section_of(a, stage), section_of(b, stage)) for stage in sorted(stages)}
    return [
        stage
        for stage, (of_a, of_b) in pairs.items()
        if (of_a.state_digest, of_a.version) != (of_b.state_digest, of_b.version)
    ]


def pairs(a: Generation, b: Generation, stage: int) -> Iterator[Pair]:
    """Yield the differences in a section, in (kind, key) order.

    Raises SnapshotFilesError, also if the digests differ and no entity does.
    """
    is_empty = True
    with ExitStack() as stack:
        try:
            for pair in _walk(stack, a, b, stage):
                is_empty = False
                yield pair
        except (FormatError, BadCopyError) as error:
            raise BadSection(
                f"the layers of section {SECTION_NAMES[stage]} were verified and cannot be read:"
                f" {error}",
                "run `viewstamp snapshot verify` on both",
            ) from error
    if is_empty and _digest(a, stage) != _digest(b, stage):
        raise BadSection(
            f"the digests of section {SECTION_NAMES[stage]} differ, and its entities do not: one of"
            " the digests is wrong",
            "run `viewstamp snapshot verify` on both",
        )


def describe(stage: int, pair: Pair) -> Difference:
    """Return a pair decoded, without secrets. Raises BadSection."""
    info = kind_of(stage, pair.kind)
    a, b = (_flat(_decoded(stage, pair, canonical)) for canonical in (pair.a, pair.b))
    names = [*a, *(name for name in b if name not in a)]
    fields = {name: (a.get(name), b.get(name)) for name in names if a.get(name) != b.get(name)}
    is_withheld = pair.change is Change.CHANGED and _secrets(stage, pair, pair.a) != _secrets(
        stage, pair, pair.b
    )
    return Difference(info, pair.key, pair.change, fields, is_withheld)


def _digest(generation: Generation, stage: int) -> bytes:
    """Return the digest of a section; a missing one is empty."""
    return section_of(generation.manifest, stage).state_digest or bytes(DIGEST_BYTES)


# --- Entities that differ ---


def _walk(stack: ExitStack, a: Generation, b: Generation, stage: int) -> Iterator[Pair]:
    """Compare the layers that only one side has; use the shared ones if a side lacks an entry."""
    of_a, of_b = (list(section_of(one.manifest, stage).layers) for one in (a, b))
    common = len(list(takewhile(_is_same_layer, zip(of_a, of_b, strict=False))))
    shared = _Lookup(_opened(stack, a, stage, of_a[:common]))
    left = merge(_entries(stack, a, stage, of_a[common:]), keep_tombstones=True)
    right = merge(_entries(stack, b, stage, of_b[common:]), keep_tombstones=True)
    for position, (in_a, in_b) in _together(left, right):
        below = shared.at(position) if in_a is None or in_b is None else None
        old = below if in_a is None else in_a.canonical
        new = below if in_b is None else in_b.canonical
        if old != new:
            yield Pair(*position, old, new)


def _is_same_layer(pair: tuple[LayerReference, LayerReference]) -> bool:
    return pair[0].digest == pair[1].digest


def _opened(
    stack: ExitStack, generation: Generation, stage: int, references: Sequence[LayerReference]
) -> list[Any]:
    layers = []
    for reference in references:
        layer = generation.copies.layer(generation.manifest, stage, reference)
        stack.callback(layer.close)
        layers.append(layer.reader)
    return layers


def _entries(
    stack: ExitStack, generation: Generation, stage: int, references: Sequence[LayerReference]
) -> list[Iterator[SectionEntry]]:
    return [reader.entries() for reader in _opened(stack, generation, stage, references)]


def _together(
    left: Iterator[SectionEntry], right: Iterator[SectionEntry]
) -> Iterator[tuple[Position, tuple[SectionEntry | None, SectionEntry | None]]]:
    """Yield the entries of two ascending sequences at each position, None where one has none."""
    a, b = next(left, None), next(right, None)
    while a is not None or b is not None:
        position = min(one[:2] for one in (a, b) if one is not None)
        here_a = a if a is not None and a[:2] == position else None
        here_b = b if b is not None and b[:2] == position else None
        yield position, (here_a, here_b)
        a = next(left, None) if here_a is not None else a
        b = next(right, None) if here_b is not None else b


class _Lookup:
    """Looks up entities of merged layers at ascending positions; near ones without the index."""

    def __init__(self, readers: Sequence[Any]) -> None:
        self._readers = readers
        self._entries: Iterator[SectionEntry] = iter(())
        self._entry: SectionEntry | None = None

    def at(self, position: Position) -> bytes | None:
        """Return the canonical bytes there, None if there is no entity. Raises FormatError."""
        if not self._is_reached(position):
            layers = [reader.entries(position) for reader in self._readers]
            self._entries = merge(layers, keep_tombstones=False)
            self._entry = next(self._entries, None)
        found = self._entry
        return found.canonical if found is not None and found[:2] == position else None

    def _is_reached(self, position: Position) -> bool:
        for _ in range(SCANNED_ENTRIES_MAX):
            if self._entry is None or self._entry[:2] >= position:
                break
            self._entry = next(self._entries, None)
        return self._entry is not None and self._entry[:2] >= position


# --- One difference, for people ---


def _decoded(stage: int, pair: Pair, canonical: bytes | None) -> Entity | None:
    return (
        None if canonical is None else decode(stage, SectionEntry(pair.kind, pair.key, canonical))
    )


def _secrets(stage: int, pair: Pair, canonical: bytes | None) -> Message:
    assert canonical is not None, "only what is there on both sides can have changed"
    return withheld(decode_whole(stage, SectionEntry(pair.kind, pair.key, canonical)))


def _flat(entity: Entity | None) -> dict[str, Any]:
    """Return the values of an entity by path, such as `name` or `options.name`."""
    return {} if entity is None else dict(_paths("", row_of(entity.message)))


def _paths(prefix: str, row: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in row.items():
        if isinstance(value, dict):
            yield from _paths(f"{prefix}{name}.", value)
        else:
            yield prefix + name, textual(value)
