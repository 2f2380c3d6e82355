"""The display while a snapshot is written: the sections that are not durable yet."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from viewstamp.api.routing.v1 import routing_pb2
from viewstamp.api.snapshots.v1 import snapshots_service_pb2 as snapshots_pb2
from viewstamp.client.errors import ClientError
from viewstamp.client.snapshots import SnapshotApi
from viewstamp.errors import Refusal

if TYPE_CHECKING:
    from rich.console import Console

# Often enough for people, and few reads for the cluster.
INTERVAL_S: Final = 0.5


async def decided(
    console: Console, snapshots: SnapshotApi, generation: int
) -> snapshots_pb2.Snapshot:
    """Wait until a generation is completed or failed; show the progress on a terminal."""
    with console.status(f"writing generation {generation}") as line:
        waiting = asyncio.ensure_future(snapshots.decided(generation))
        try:
            while not (await asyncio.wait([waiting], timeout=INTERVAL_S))[0]:
                if console.is_terminal and not console.quiet:
                    # Only the outcome matters, so a read that fails leaves the line as it is.
                    with suppress(Refusal, ClientError):
                        line.update(told(generation, await sections_left(snapshots, generation)))
            return waiting.result()
        finally:
            waiting.cancel()


async def sections_left(snapshots: SnapshotApi, generation: int) -> list[str]:
    """Return the sections that the primary has not made durable for a generation."""
    reached = {stage: await _reached(snapshots, stage) for stage in routing_pb2.Stage.values()}
    return [
        routing_pb2.Stage.Name(stage).removeprefix("STAGE_").lower()
        for stage, newest in reached.items()
        if newest is not None and newest < generation
    ]


def told(generation: int, left: Sequence[str]) -> str:
    """Return the line about a generation."""
    if not left:
        return f"writing generation {generation}: all sections are durable here, deciding"
    return f"writing generation {generation}: {', '.join(left)} left"


async def _reached(snapshots: SnapshotApi, stage: routing_pb2.Stage.ValueType) -> int | None:
    """Return the generation that a section has reached; None for a stage without a section."""
    try:
        return await snapshots.lookup_generation(stage)
    except Refusal:
        return None
