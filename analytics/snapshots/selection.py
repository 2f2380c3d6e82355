"""The input to read: directories, generations, sections and a kind, from reader options."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from analytics.snapshots import copies
from analytics.snapshots.errors import SnapshotError
from analytics.snapshots.layers import KeyRange
from viewstamp.api.routing.v1 import routing_pb2
from viewstamp.format.kinds import KINDS, KindInfo
from viewstamp.limits import MIB

PATH: Final = "path"
COPIES: Final = "copies"
GENERATION: Final = "generation"
SECTION: Final = "section"
KIND: Final = "kind"
VIEW: Final = "view"
PARTITION_BYTES: Final = "partition_bytes"
OPTIONS: Final = (PATH, COPIES, GENERATION, SECTION, KIND, VIEW, PARTITION_BYTES)
NEWEST: Final = "newest"
ALL: Final = "all"
# Bytes of a partition before compression: some seconds of work for one core.
PARTITION_BYTES_DEFAULT: Final = 32 * MIB

SECTION_NAMES: Final[Mapping[int, str]] = {
    number: name.removeprefix("STAGE_").lower()
    for name, number in sorted(routing_pb2.Stage.items(), key=lambda item: item[1])
    if number
}


@dataclass(frozen=True, slots=True)
class SnapshotSelection:
    """Directories, generations ascending, stages ascending; `kind` is 0 for all of them."""

    directories: tuple[Path, ...]
    generations: tuple[int, ...]
    stages: tuple[int, ...]
    kind: int
    partition_bytes: int

    @property
    def within(self) -> KeyRange:
        """Return the keys of the kind, or all."""
        return KeyRange((self.kind, b""), (self.kind + 1, b"")) if self.kind else KeyRange()

    def manifests(self) -> Iterator[bytes]:
        """Yield the manifest file of each generation. Raises SnapshotError."""
        for generation in self.generations:
            yield copies.manifest_of(self.directories, generation)


def kind_name(stage: int, kind: int) -> str:
    """Return the name of a kind; one that this program does not know is named by its number."""
    info = KINDS.get((stage, kind))
    return info.name if info is not None else f"kind {kind}"


def kind_named(name: str) -> tuple[int, int, KindInfo]:
    """Return stage and number of a kind, and what it is. Raises SnapshotError."""
    for (stage, kind), info in KINDS.items():
        if info.name == name:
            return stage, kind, info
    known = ", ".join(info.name for info in KINDS.values())
    raise SnapshotError(f"no kind of entity is named {name!r}: choose from {known}")


def selection_of(options: Mapping[str, str]) -> SnapshotSelection:
    """Return what options select. Raises SnapshotError for absent things and unknown options."""
    unknown = sorted(set(options) - set(OPTIONS))
    if unknown:
        raise SnapshotError(f"options {unknown} are unknown: there are {', '.join(OPTIONS)}")
    directories = _directories(options)
    stages, kind = _parts(options)
    there = copies.generations(directories)
    return SnapshotSelection(
        tuple(directories),
        tuple(_generations(options.get(GENERATION, NEWEST), there, directories)),
        stages,
        kind,
        _positive(PARTITION_BYTES, options.get(PARTITION_BYTES, str(PARTITION_BYTES_DEFAULT))),
    )


def _directories(options: Mapping[str, str]) -> list[Path]:
    if COPIES in options:
        return [Path(path) for path in options[COPIES].split(os.pathsep)]
    if not options.get(PATH):
        raise SnapshotError("no directory is given: load(DIRECTORY), or the option `copies`")
    return copies.copy_directories(Path(options[PATH].removeprefix("file://")))


def _parts(options: Mapping[str, str]) -> tuple[tuple[int, ...], int]:
    """Return the stages and the kind that are selected."""
    stages = tuple(SECTION_NAMES)
    if SECTION in options:
        stages = tuple(number for number, name in SECTION_NAMES.items() if name == options[SECTION])
        if not stages:
            names = ", ".join(SECTION_NAMES.values())
            raise SnapshotError(f"{options[SECTION]!r} is no section: choose from {names}")
    if KIND not in options:
        return stages, 0
    stage, kind, info = kind_named(options[KIND])
    if stage not in stages:
        raise SnapshotError(
            f"section {options[SECTION]} has no {info.name}: they are in {SECTION_NAMES[stage]}"
        )
    return (stage,), kind


def _generations(text: str, there: Sequence[int], directories: Sequence[Path]) -> Sequence[int]:
    if text in (NEWEST, "0"):
        return there[-1:]
    if text == ALL:
        return there
    wanted = sorted({_positive(GENERATION, part) for part in text.split(",")})
    missing = [generation for generation in wanted if generation not in there]
    if missing:
        raise SnapshotError(
            f"no manifest of generation {missing[0]} is in {', '.join(map(str, directories))};"
            f" there: {', '.join(map(str, there))}"
        )
    return wanted


def _positive(name: str, text: str) -> int:
    text = text.strip()
    if not text.isascii() or not text.isdecimal() or not int(text):
        raise SnapshotError(f"option {name} is {text!r}: it must be a number from 1 on")
    return int(text)
