"""Who changed an entity: pages of its changes, oldest first."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from types import MappingProxyType
from typing import Any, Final, Literal, TypeAlias

from viewstamp.api.history.v1 import history_service_pb2 as history_pb2
from viewstamp.api.watch.v1.watch_service_pb2 import Change
from viewstamp.client.errors import ProtocolError
from viewstamp.client.identifiers import identifier
from viewstamp.client.watching import decoded

# What belongs to an entity: the members of a group, the tokens of a user, who has the partitions of
# a topic.
BlamedPartName: TypeAlias = Literal["members", "tokens", "placements"]
_PARTS: Final = MappingProxyType(
    {
        "members": history_pb2.BLAMED_PART_MEMBERS,
        "tokens": history_pb2.BLAMED_PART_TOKENS,
        "placements": history_pb2.BLAMED_PART_PLACEMENTS,
    }
)


def blame_request(
    names: dict[str, int | str | None],
    from_revision: int,
    page_size: int,
    part: BlamedPartName | None = None,
    partition: int | None = None,
) -> history_pb2.BlameEntityRequest:
    """Return the request for an entity, or for what belongs to it.

    Raises ValueError for a negative number, and for a part that there is not.
    """
    if part is not None and part not in _PARTS:
        raise ValueError(f"there is no part {part!r}: give one of {', '.join(_PARTS)}")
    request = history_pb2.BlameEntityRequest(
        from_revision=from_revision,
        page_size=page_size,
        part=history_pb2.BLAMED_PART_UNSPECIFIED if part is None else _PARTS[part],
        partition=partition,
    )
    for name, value in names.items():
        if value is not None:
            getattr(request, name).CopyFrom(identifier(value))
    return request


async def blame_pages(
    ask: Callable[[history_pb2.BlameEntityRequest], Awaitable[Any]],
    request: history_pb2.BlameEntityRequest,
) -> AsyncIterator[history_pb2.BlameEntityResponse]:
    """Yield pages until one of them is the last. Raises what `ask` raises, and ProtocolError."""
    while True:
        page: history_pb2.BlameEntityResponse = await ask(request)
        if page.part != request.part:
            raise ProtocolError(
                "the replica that answered knows the history of entities alone, and not of what"
                " belongs to them: upgrade it first"
            )
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
