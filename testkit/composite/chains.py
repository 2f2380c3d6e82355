"""Sections put together from cuts, as a tiny model of layers; and commands of the catalog."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from coordinator.mux import catalog_types as catalog
from coordinator.mux.catalog_types import RetentionClass
from coordinator.mux.types import CatalogCommand, CutTaken, Stage
from testkit.frozen import changes_of
from viewstamp.machine.freezing import Change, Entity

# (kind, key) -> canonical bytes.
Section = dict[tuple[int, bytes], bytes]

ROOT = bytes(range(32))
TASKS = tuple(catalog.TaskSnapshot(stage, 1, bytes([stage]) * 32, 1, 1) for stage in Stage)

_COMMANDS: dict[int, Callable[..., CatalogCommand]] = {
    401: lambda retention: catalog.CreateSnapshot(RetentionClass(retention)),
    402: catalog.DeleteSnapshot,
    403: lambda last, daily=0, only=0: catalog.PruneSnapshots(last, daily, bool(only)),
    404: lambda generation, retention: catalog.SetRetention(generation, RetentionClass(retention)),
    405: lambda generation, last=5, daily=0: catalog.BeginSnapshot(generation, last, daily),
    406: lambda generation: catalog.CompleteSnapshot(generation, ROOT, TASKS),
    407: lambda generation: catalog.FailSnapshot(generation, "late"),
}


def catalog_command(code: int, *numbers: int) -> CatalogCommand:
    """Return the command of a code, from its numbers."""
    return _COMMANDS[code](*numbers)


def section_of(taken: Mapping[int, CutTaken], generation: int, name: str) -> Section:
    """Return a section of a generation, from the chain of changes that leads to it."""
    if generation == 0:
        return {}
    frozen = getattr(taken[generation], name)
    return applied(section_of(taken, frozen.base_generation, name), changes_of(frozen))


def applied(base: Section, changes: Iterable[Change]) -> Section:
    """Return a section with changes; each must name what was there, and come in order."""
    section = dict(base)
    before: tuple[int, bytes] | None = None
    for kind, key, old, new in changes:
        assert before is None or before < (kind, key), f"{key.hex()} comes out of order"
        assert old != new, f"{key.hex()} of kind {kind} has not changed"
        assert base.get((kind, key)) == old, f"the old value of {key.hex()} is not the base's"
        before = (kind, key)
        if new is None:
            del section[kind, key]
        else:
            section[kind, key] = new
    return section


def entities_of(section: Section) -> list[Entity]:
    """Return the entities of a section in order."""
    return [(kind, key, section[kind, key]) for kind, key in sorted(section)]


def section_from(entities: Iterable[Entity]) -> Section:
    """Return entities as a section."""
    return {(kind, key): canonical for kind, key, canonical in entities}
