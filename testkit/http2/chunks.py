"""Conversations of many seeds, in processes side by side."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from testkit.campaigns.workers import pool
from testkit.http2.conversation import FrameConversation

# What one process does before it tells.
CHUNK_SEEDS: Final = 200


@dataclass(frozen=True, slots=True)
class ChunkFigures:
    """What some conversations came to."""

    frames: int
    conversations: int
    failures: int
    """How many ends failed their connection, all of them because the way had changed bytes."""


def hold_chunk(first_seed: int) -> ChunkFigures:
    """Hold the conversations of some seeds, each on both ways. Raises BrokenRuleError."""
    held = [
        FrameConversation(seed, is_changed=is_changed)
        for seed in range(first_seed, first_seed + CHUNK_SEEDS)
        for is_changed in (False, True)
    ]
    for each in held:
        each.hold()
    frames, failures = (
        sum(getattr(each, name) for each in held) for name in ("frames", "failures")
    )
    return ChunkFigures(frames, len(held), failures)


def chunks(seed: int, frames: int, processes: int) -> Iterator[ChunkFigures]:
    """Yield figures until so many frames were heard. Raises BrokenRuleError."""
    seeds = itertools.count(seed, CHUNK_SEEDS)
    with pool(processes) as workers:
        heard = 0
        while heard < frames:
            for figures in workers.map(hold_chunk, itertools.islice(seeds, processes)):
                heard += figures.frames
                yield figures
