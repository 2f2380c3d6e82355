"""Reads of a machine's changes as a coordinator makes them, for the tests of all domains."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from services.runtime.changes import RecentChanges
from services.runtime.machine import CHANGES_CODE, Machine
from viewstamp import framing
from viewstamp.api.domain.v1 import domain_service_pb2 as pb
from viewstamp.api.watch.v1 import watch_service_pb2 as watch_pb2
from viewstamp.limits import CHANGES_PAGE_MAX, FEATURE_LEVEL_MAX

KINDS: Final = {
    watch_pb2.CHANGE_KIND_CREATED: "created",
    watch_pb2.CHANGE_KIND_UPDATED: "updated",
    watch_pb2.CHANGE_KIND_DELETED: "deleted",
}
# Entity by type and key.
Entities = dict[tuple[str, bytes], bytes]


def changes_item(**fields: Any) -> pb.Item:
    """Return a read of changes: by default from the first revision, as many as there are."""
    request = pb.ChangesRequest(**{"changes_max": CHANGES_PAGE_MAX, **fields})
    items = framing.frame(request.SerializeToString())
    return pb.Item(query=pb.QueryItem(query_id=1, code=CHANGES_CODE, count=1, items=items))


def limit(machine: Machine[Any], bytes_max: int) -> None:
    """Let a machine keep changes from here on, up to a limit."""
    machine.changes = RecentChanges(machine.domain, machine.state, machine.revision, bytes_max)


def page_of(machine: Machine[Any], **fields: Any) -> pb.ChangesPage:
    """Read one page outside the log."""
    batch = pb.Batch(feature_level=FEATURE_LEVEL_MAX, items=[changes_item(**fields)])
    (outcome,) = machine.apply(batch).reply.outcomes
    assert outcome.query.query_id == 1
    (page,) = framing.unframe(outcome.query.results)
    return pb.ChangesPage.FromString(page)


def pages_of(machine: Machine[Any], **fields: Any) -> list[pb.ChangesPage]:
    """Read pages, each from where the one before it ended, up to the last one."""
    pages = [page_of(machine, **fields)]
    while pages[-1].is_cut_off:
        last = pages[-1]
        assert last.changes, "a page that is cut off and empty would be asked for again for ever"
        fields |= {"from_revision": last.next_revision, "skipped": last.next_skipped}
        pages.append(page_of(machine, **fields))
    return pages


def changes_of(machine: Machine[Any], **fields: Any) -> list[watch_pb2.Change]:
    """Return all changes that the machine keeps; by default from the first revision on."""
    return [change for page in pages_of(machine, **fields) for change in page.changes]


def fold(entities: Entities, changes: Sequence[watch_pb2.Change]) -> None:
    """Apply changes to what a watcher knows, and check that each tells what really happened."""
    places = {(change.revision, change.entity_type, change.key) for change in changes}
    assert len(places) == len(changes), "a revision changes an entity once"
    for change in changes:
        place = change.entity_type, change.key
        known = place in entities
        assert known is (change.kind != watch_pb2.CHANGE_KIND_CREATED), change
        if change.kind == watch_pb2.CHANGE_KIND_DELETED:
            # Described as it was, so that a watcher sees what it knew last.
            assert entities.pop(place) == change.entity, change
        else:
            entities[place] = change.entity
