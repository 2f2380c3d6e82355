"""What a client of Viewstamp installs: API stubs, client library, command line, limits, errors.

    import viewstamp

    async with await viewstamp.connect("localhost:7400", username="root", password=...) as client:
        created = await client.streams.create("orders")

Names in `__all__` are loaded on first use, because servers import this package and need few of
them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from viewstamp.client import (
        LINEARIZABLE,
        STALE,
        BlockingClient,
        CannotConnect,
        Client,
        ClientClosed,
        ClientError,
        Consistency,
        OutcomeUnknown,
        Refusal,
        StreamBroken,
        TimedOut,
        at_least,
        connect,
        connect_blocking,
    )

__all__ = [
    "connect",
    "connect_blocking",
    "Client",
    "BlockingClient",
    "Consistency",
    "LINEARIZABLE",
    "STALE",
    "at_least",
    "Refusal",
    "ClientError",
    "CannotConnect",
    "TimedOut",
    "OutcomeUnknown",
    "ClientClosed",
    "StreamBroken",
]


def __dir__() -> list[str]:
    """Return what can be used from here."""
    return sorted((*globals(), *__all__))


def __getattr__(name: str) -> Any:
    """Return what is loaded on first use."""
    if name in __all__:
        from viewstamp import client

        return getattr(client, name)
    raise AttributeError(f"module 'viewstamp' has no attribute {name!r}")
