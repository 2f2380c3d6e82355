"""How a command asks the cluster. Only these calls load the client, so help and TAB are fast."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeVar

import typer

if TYPE_CHECKING:
    from google.protobuf.message import Message

    from viewstamp.client import Client

T = TypeVar("T")


def run(
    context: typer.Context, action: Callable[[Client], Awaitable[T]], revision: int | None = None
) -> T:
    """Connect, run `action` with the client, and return its result.

    With a `revision` everything is read at it.
    Reports errors and exits: 1 if the cluster refused, 3 if it could not be reached.
    """
    from viewstamp.cli import session

    return session.run(context, action, revision)


def collected(
    context: typer.Context,
    listed: Callable[[Client], AsyncIterator[T]],
    revision: int | None = None,
) -> list[T]:
    """Connect, and return all items that the client lists, at a revision if one is given."""

    async def collect(client: Client) -> list[T]:
        return [item async for item in listed(client)]

    return run(context, collect, revision)


def ask_here(context: typer.Context, request: Message) -> Any:
    """Let the first replica of the address answer from its own state, even if that is old."""
    from viewstamp.cli import session

    return session.ask_here(context, request)
