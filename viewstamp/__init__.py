"""What a client of Viewstamp installs: API stubs, client library, command line, limits, errors.

    import viewstamp

    async with await viewstamp.connect("localhost:7400", username="root", password=...) as client:
        created = await client.streams.create("orders")

`connect` and `Client` are loaded on first use: servers import this package too, and cheaply.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from viewstamp.client import Client, connect

__all__ = ["connect", "Client"]


def __getattr__(name: str) -> Any:
    """Return what is loaded on first use."""
    if name in __all__:
        from viewstamp import client

        return getattr(client, name)
    raise AttributeError(f"module 'viewstamp' has no attribute {name!r}")
