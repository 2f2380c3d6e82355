"""Entities named by id or by name, and what the typed facades share."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Protocol

from google.protobuf.message import Message

from viewstamp.api.common.v1 import common_pb2
from viewstamp.client.consistency import Consistency


class FacadeClient(Protocol):
    """What the facades need of a client."""

    async def call(self, request: Message, *, consistency: Consistency = ...) -> Any:
        """Call the method of `request` and return its response."""


def identifier(entity: int | str) -> common_pb2.Identifier:
    """Return an id (int) or a name (str) as the API takes it."""
    if isinstance(entity, str):
        return common_pb2.Identifier(name=entity)
    return common_pb2.Identifier(id=entity)


async def pages(
    fetch: Callable[[str], Awaitable[Any]], items: Callable[[Any], Any]
) -> AsyncIterator[Any]:
    """Yield the items of all pages; `fetch` gets the page token, "" for the first page."""
    token = ""
    while True:
        page = await fetch(token)
        for item in items(page):
            yield item
        token = page.next_page_token
        if not token:
            return
