"""Another transport in the place of gRPC, for a while."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from viewstamp import grpc_transport
from viewstamp.grpc_transport import Transport


@contextmanager
def stand_in(transport: Transport) -> Iterator[None]:
    """Have `transport` make all channels and servers of this process until the block ends."""
    before, grpc_transport.transport = grpc_transport.transport, transport
    try:
        yield
    finally:
        grpc_transport.transport = before
