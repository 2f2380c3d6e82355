"""The two sections that the mux keeps, read back: version, migration, digest and counts.

Services check their own sections (`services.runtime.installing`); these are checked here. The
manifest describes the stored bytes, so entries are counted before they are migrated. The mux loads
nothing before it has read both sections to their ends, where a difference raises: no machine has
changed by then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Final, TypeAlias

from coordinator.mux.entities import REPLY_KIND, RestoreError
from coordinator.mux.stage import Stage
from coordinator.snapshot.verify import difference
from coordinator.stages.errors import without_text
from viewstamp.api.errors.v1 import errors_pb2
from viewstamp.api.sessions.v1 import sessions_pb2
from viewstamp.api.snapshots.v1.manifest_pb2 import SectionManifest
from viewstamp.format import FormatVersionError
from viewstamp.format.section import SectionEntry, SectionTally
from viewstamp.machine.freezing import Entity

# Rewrites the entities of one version as those of the next, in the same order.
Migration: TypeAlias = Callable[[Iterator[Entity]], Iterator[Entity]]

# Schema versions. Version 2 of sessions: errors in kept replies are reasons without texts.
VERSIONS: Final[Mapping[Stage, int]] = MappingProxyType({Stage.SESSIONS: 2, Stage.CATALOG: 1})


def is_rewritten(stage: Stage, section: SectionManifest) -> bool:
    """Return whether a section is migrated, so that its next layer must be a new base."""
    return section.version != VERSIONS[stage]


def entities_of(
    stage: Stage, section: SectionManifest, entries: Iterable[SectionEntry]
) -> Iterator[Entity]:
    """Yield the entities of a section, as this build would write them.

    Raises FormatVersionError at once for a section of a newer build, or of one too old; the
    iterator raises RestoreError at its end if the entries do not match the manifest.
    """
    _check_version(stage, section.version)
    entities = _checked(stage, section, entries)
    for version in range(section.version, VERSIONS[stage]):
        entities = MIGRATIONS[stage, version](entities)
    return entities


def _check_version(stage: Stage, version: int) -> None:
    name, known = stage.name.lower(), VERSIONS[stage]
    if version > known:
        raise FormatVersionError(
            f"the {name} section has version {version}, and this build knows versions up to"
            f" {known}: start a newer one; the data directory is good"
        )
    missing = [step for step in range(version, known) if (stage, step) not in MIGRATIONS]
    if missing:
        raise FormatVersionError(
            f"the {name} section has version {version}, which this build cannot migrate to {known}:"
            " start a build that knows it, and take a snapshot there"
        )


def _checked(
    stage: Stage, section: SectionManifest, entries: Iterable[SectionEntry]
) -> Iterator[Entity]:
    tally = SectionTally()
    for kind, key, canonical in entries:
        assert canonical is not None, "a merged section has no tombstones"
        tally.add((kind, key, None, canonical))
        yield kind, key, canonical
    wrong = difference(section, tally)
    if wrong is not None:
        raise RestoreError(f"the {stage.name.lower()} section is not what was cut: {wrong}")


def _replies_without_texts(entities: Iterator[Entity]) -> Iterator[Entity]:
    """Sessions, version 1 to 2: replies keep only the reasons of refusals, without texts."""
    for kind, key, canonical in entities:
        if kind == REPLY_KIND:
            yield kind, key, _without_texts(canonical)
        else:
            yield kind, key, canonical


def _without_texts(canonical: bytes) -> bytes:
    reply = sessions_pb2.ReplyEntity.FromString(canonical)
    for span in reply.spans:
        for refused in span.errors:
            stripped = without_text(refused.error.SerializeToString(deterministic=True))
            refused.error.CopyFrom(errors_pb2.Error.FromString(stripped))
    return reply.SerializeToString(deterministic=True)


# (stage, version) -> how that version becomes the next.
MIGRATIONS: Final[Mapping[tuple[Stage, int], Migration]] = MappingProxyType(
    {(Stage.SESSIONS, 1): _replies_without_texts}
)
