"""The streams service, whose section tests can hold back.

`python -m tests.processes.held_section --listen unix:PATH`: while a file `hold` exists beside its
socket, each reader of a section waits. Commands and reads are served meanwhile. So a test can keep
a snapshot under way as long as it wants.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import services.runtime.server
from services.runtime.domain import Domain
from services.runtime.process import run
from services.runtime.reading import SectionReading
from services.streams.domain import DOMAIN
from services.streams.model import StreamsState
from tests.processes.processes import ReplicaProcesses
from viewstamp.api.domain.v1 import domain_service_pb2 as pb

MODULES: Final = {"streams": "tests.processes.held_section"}
LOOK_INTERVAL_S: Final = 0.02


@contextmanager
def held(replica: ReplicaProcesses) -> Iterator[None]:
    """Hold back the section of streams while the block runs."""
    hold = replica.sockets / "hold"
    hold.touch()
    try:
        yield
    finally:
        hold.unlink()


def _hold_readings(hold: Path) -> None:
    class HeldReading(SectionReading):
        async def responses(self) -> AsyncIterator[pb.ReadSectionResponse]:
            while hold.exists():  # noqa: ASYNC110 - the test is another process
                await asyncio.sleep(LOOK_INTERVAL_S)
            async for response in super().responses():
                yield response

    setattr(services.runtime.server, "SectionReading", HeldReading)  # noqa: B010


def _build(options: argparse.Namespace) -> Domain[StreamsState]:
    _hold_readings(Path(options.listen.removeprefix("unix:")).parent / "hold")
    return DOMAIN


if __name__ == "__main__":
    sys.exit(run("streams", _build))
