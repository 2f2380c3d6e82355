"""Who changed an entity: pages of its changes, oldest first."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from viewstamp.api.history.v1 import history_service_pb2 as history_pb2
from viewstamp.api.watch.v1.watch_service_pb2 import Change
from viewstamp.client.identifiers import identifier
from viewstamp.client.watching import decoded


def blame_request(
    names: dict[str, int | str | None], from_revision: int, page_size: int
) -> history_pb2.BlameEntityRequest:
    """Return the request for an entity. Raises ValueError for a negative revision or size."""
    request = history_pb2.BlameEntityRequest(from_revision=from_revision, page_size=page_size)
    for name, value in names.items():
        if value is not None:
            getattr(request, name).CopyFrom(identifier(value))
    return request


async def blame_pages(
    ask: Callable[[history_pb2.BlameEntityRequest], Awaitable[Any]],
    request: history_pb2.BlameEntityRequest,
) -> AsyncIterator[history_pb2.BlameEntityResponse]:
    """Yield pages until one of them is the last. Raises what `ask` raises."""
    while True:
        page: history_pb2.BlameEntityResponse = await ask(request)
        yield page
        if not page.next_revision:
            return
        request.from_revision = page.next_revision
        request.ids[:] = page.ids


def entities_of(change: history_pb2.EntityChange) -> tuple[Any, Any]:
    """Return the entity before and after a change, None where there is none.

    Raises ProtocolError for a type that this build does not know.
    """
    before, after = (
        decoded(Change(entity_type=change.entity_type, entity=encoded)) if encoded else None
        for encoded in (change.before, change.after)
    )
    return before, after
