"""What a service starts from: the section of a snapshot, installed before its first batch.

In two phases: each service checks its section, and only once all sections are whole, and belong
together, is any of them served.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final, Protocol

import grpc.aio

from viewstamp.api.domain.v1 import domain_service_pb2 as pb

# Blocks that one thread call reads ahead of the stream.
BLOCKS_TOGETHER: Final = 16


@dataclass(frozen=True, slots=True)
class InstalledSection:
    """One section of a snapshot, and where its stage continues from it.

    `sequence` is that of the batch with the cut, 0 if an earlier process sent it. `blocks` yields
    (layer index, block as stored), reads files, and may be called again; it raises
    BaseExchangedError if the files have another count of layers by now.
    """

    generation: int
    revision: int
    sequence: int
    section_version: int
    state_digest: bytes
    entities: int
    layers: int
    blocks: Callable[[], Iterator[tuple[int, bytes]]]

    def begin(self) -> pb.InstallBegin:
        """Return the first message of the installation."""
        return pb.InstallBegin(
            generation=self.generation,
            revision=self.revision,
            sequence=self.sequence,
            section_version=self.section_version,
            state_digest=self.state_digest,
            entities=self.entities,
            layers=self.layers,
        )


class Barrier(Protocol):
    """Holds a service back until it may serve what was installed."""

    async def installed(self, stage: int, installed: pb.Installed) -> None:
        """Return once the section may be activated. Raises errors that must end the process."""


class BaseExchangedError(Exception):
    """The section lies here in other layers than announced: begin again once the base is new."""


class BaseRefusedError(Exception):
    """A service does not accept its section; the message says why. Retrying would not help."""


async def install(
    call: Any, base: InstalledSection, took: Callable[[], None] = lambda: None
) -> pb.Installed:
    """Send a section over an open Apply stream and return the service's verdict.

    `took` is told of every block that the transport has taken. The service may take any time to
    check its entities: a live service is waited for, and reported as slow.

    Raises grpc.RpcError if the service is gone, or refuses; BaseExchangedError.
    """
    await _write(call, pb.Install(begin=base.begin()))
    blocks = base.blocks()
    while some := await asyncio.to_thread(_take, blocks):
        for layer, data in some:
            await _write(call, pb.Install(block=pb.InstallBlock(layer=layer, data=data)))
            took()
    await _write(call, pb.Install(end=pb.InstallEnd()))
    message = await call.read()
    if message is grpc.aio.EOF:
        # Reading the status raises the error with which the service ended the stream.
        await call.read()
        raise TimeoutError
    return pb.ApplyResponse.FromString(message).installed


async def activate(call: Any) -> None:
    """Have the service serve the installed section."""
    await _write(call, pb.Install(activate=pb.InstallActivate()))


async def _write(call: Any, message: pb.Install) -> None:
    await call.write(pb.ApplyRequest(install=message).SerializeToString())


def _take(blocks: Iterator[tuple[int, bytes]]) -> list[tuple[int, bytes]]:
    return list(islice(blocks, BLOCKS_TOGETHER))
