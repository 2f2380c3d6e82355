"""Which transport carries the calls of a process: our own HTTP/2, or the gRPC library.

Both speak the same protocol, so processes and clients of either kind work together. A flag decides
for a process, and the variable VIEWSTAMP_TRANSPORT for all whose flags do not. Where neither says
anything, ours does it.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Mapping
from typing import Final

from viewstamp import grpc_transport
from viewstamp.grpc_transport import GrpcTransport, Transport

VARIABLE: Final = "VIEWSTAMP_TRANSPORT"
GRPCIO: Final = "grpcio"
WIRE: Final = "wire"


class UnknownTransport(ValueError):  # noqa: N818 - reads as the sentence it is
    """A name that no transport has; the text says which there are."""


def _wire() -> Transport:
    from viewstamp.wire.transport import WireTransport

    return WireTransport()


_MAKERS: Final[Mapping[str, Callable[[], Transport]]] = {WIRE: _wire, GRPCIO: GrpcTransport}
"""What makes each; ours is loaded only where it is used."""
DEFAULT: Final = WIRE


def add_argument(parser: argparse.ArgumentParser, default: str = DEFAULT) -> None:
    """Add the flag `--transport`."""
    parser.add_argument(
        "--transport",
        default=default,
        metavar=f"{{{','.join(_MAKERS)}}}",
        help=f"what carries calls: our own HTTP/2 (`{WIRE}`), or the gRPC library (`{GRPCIO}`)",
    )


def chosen() -> str:
    """Return what the environment says, or the default."""
    return os.environ.get(VARIABLE) or DEFAULT


def use(name: str) -> None:
    """Have this process use a transport from now on. Raises UnknownTransport."""
    check(name)
    grpc_transport.transport = _MAKERS[name]()


def check(name: str) -> None:
    """Raise UnknownTransport if no transport has this name."""
    if name not in _MAKERS:
        raise UnknownTransport(
            f"there is no transport {name!r}: give --transport or {VARIABLE} one of"
            f" {', '.join(_MAKERS)}"
        )
