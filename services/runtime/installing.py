"""Installing a section: layers arrive in blocks, are merged, migrated, loaded and checked.

All of it happens in a new state. No machine changes before `Machine.activate`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final, Generic

from services.runtime.domain import Domain, State
from services.runtime.freezing import Base, SectionFreezer
from services.runtime.section import Section, SectionError
from viewstamp.api.domain.v1 import domain_service_pb2 as pb
from viewstamp.format import FormatError, FormatVersionError
from viewstamp.format.block import decode_block
from viewstamp.format.digest import DIGEST_BYTES, StateDigest
from viewstamp.format.merge import merge
from viewstamp.format.section import SectionEntry, SectionTally
from viewstamp.machine.freezing import Entity
from viewstamp.machine.tables import UndoLog

# Layers of one chain; compaction begins long before that.
INSTALL_LAYERS_MAX: Final = 1024


class InstallOrderError(Exception):
    """An installation message that cannot come here."""


class NewerSectionError(Exception):
    """A section in the form of a later build, or one too old to be migrated."""


class SectionContentsError(Exception):
    """A section that is damaged, or not as announced."""


@dataclass(frozen=True, slots=True)
class Installed(Generic[State]):
    """A loaded and checked section, ready for a machine."""

    begin: pb.InstallBegin
    state: State
    undo: UndoLog
    freezer: SectionFreezer[State]
    projections: dict[str, bytes]

    def answer(self) -> pb.Installed:
        """Return what the coordinator is told."""
        digests = [
            pb.ProjectionDigest(name=name, digest=digest)
            for name, digest in sorted(self.projections.items())
        ]
        return pb.Installed(generation=self.begin.generation, projections=digests)


class SectionInstallation(Generic[State]):
    """One section on its way in: `add` its blocks, then run `loading` to its end."""

    def __init__(self, domain: Domain[State], begin: pb.InstallBegin) -> None:
        """Begin. Raises InstallOrderError for impossible numbers, and NewerSectionError."""
        _check_begin(begin)
        _check_version(domain.section, begin.section_version)
        self.installed: Installed[State] | None = None  # once `loading` has ended
        self._domain = domain
        self._begin = begin
        self._layers: list[list[bytes]] = [[] for _ in range(begin.layers)]

    def add(self, block: pb.InstallBlock) -> None:
        """Keep a block. Raises InstallOrderError for a block of an unannounced layer."""
        if block.layer >= len(self._layers):
            raise InstallOrderError(
                f"a block of layer {block.layer} of a section of {len(self._layers)} layers"
            )
        self._layers[block.layer].append(block.data)

    def loading(self) -> Iterator[None]:
        """Load and check; between two steps the caller may do something else.

        Raises SectionContentsError, NewerSectionError.
        """
        undo = UndoLog()
        state = self._domain.new_state(undo)
        tally = SectionTally()
        entities = self._migrated(_counted(self._merged(), tally))
        try:
            for _ in self._domain.section.loading(state, entities):
                undo.settle()
                yield
        except FormatVersionError as error:
            raise NewerSectionError(f"{self._name()}: {error}: upgrade it") from error
        except (FormatError, SectionError) as error:
            raise SectionContentsError(f"{self._name()}: {error}") from error
        undo.settle()
        self._check(tally)
        yield
        self.installed = Installed(
            begin=self._begin,
            state=state,
            undo=undo,
            freezer=SectionFreezer(self._domain.section, state, self._base(tally)),
            projections=self._domain.section.projection_digests(state),
        )

    def _merged(self) -> Iterator[SectionEntry]:
        return merge([_entries(blocks) for blocks in self._layers], keep_tombstones=False)

    def _migrated(self, entities: Iterator[Entity]) -> Iterator[Entity]:
        """Rewrite the entities, version by version, as this build would write them."""
        for version in range(self._begin.section_version, self._domain.section.version):
            entities = self._domain.section.migrations[version](entities)
        return entities

    def _base(self, tally: SectionTally) -> Base | None:
        """Return the base of the next cut's changes; None if every entity was rewritten."""
        if self._begin.section_version != self._domain.section.version:
            return None
        return Base(self._begin.generation, tally.digest.value, tally.kinds)

    def _check(self, tally: SectionTally) -> None:
        if tally.entities != self._begin.entities:
            raise SectionContentsError(
                f"{self._name()} has {tally.entities} entities; {self._begin.entities} were "
                "announced"
            )
        announced = StateDigest.from_bytes(self._begin.state_digest)
        if tally.digest != announced:
            raise SectionContentsError(
                f"{self._name()} has the digest {tally.digest.hexdigest()}; "
                f"{announced.hexdigest()} was announced"
            )

    def _name(self) -> str:
        return f"the section of generation {self._begin.generation}"


def _check_begin(begin: pb.InstallBegin) -> None:
    if not begin.generation:
        raise InstallOrderError("generation 0 is the empty state, which needs no installation")
    if begin.layers > INSTALL_LAYERS_MAX:
        raise InstallOrderError(
            f"a section has at most {INSTALL_LAYERS_MAX} layers, not {begin.layers}"
        )
    if len(begin.state_digest) != DIGEST_BYTES:
        raise InstallOrderError(
            f"a state digest has {DIGEST_BYTES} bytes, not {len(begin.state_digest)}"
        )


def _check_version(section: Section[State], version: int) -> None:
    if version > section.version:
        raise NewerSectionError(
            f"the section has version {version}, and this build knows versions up to "
            f"{section.version}: upgrade it"
        )
    missing = [step for step in range(version, section.version) if step not in section.migrations]
    if missing:
        raise NewerSectionError(
            f"the section has version {version}, which this build cannot migrate to "
            f"{section.version}: load it by a build that knows it, and take a snapshot there"
        )


def _entries(blocks: list[bytes]) -> Iterator[SectionEntry]:
    """Yield the entries of a layer's blocks, and let go of each block."""
    blocks.reverse()
    while blocks:
        yield from decode_block(blocks.pop())


def _counted(entries: Iterable[SectionEntry], tally: SectionTally) -> Iterator[Entity]:
    """Yield entities, counted as they are before any migration."""
    for kind, key, canonical in entries:
        assert canonical is not None, "tombstones were left out"
        tally.add((kind, key, None, canonical))
        yield kind, key, canonical
