"""Which faults a run has, and when: drawn before the run, so that any of them can be left out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from random import Random
from typing import Final

EVERY_MS: Final = (100, 2_500)
_MS_PER_S: Final = 1_000
# Brokers get time to catch up between two of their faults, whose numbers begin here.
_BROKERS_EVERY_MS: Final = (200, 2_000)
_FIRST_OF_BROKERS: Final = 10_000

KINDS: Final = (
    "kill",
    "kill_in_io",
    "kill_in_step",
    "stop",
    "kill_service",
    "kill_client",
    "pause",
    "pause_service",
    "pause_client",
    "hang_service",
    "slow_service",
    "away",
    "move",
    "step_down",
    "cut",
    "cut_client",
    "isolate",
    "partition",
    "lose",
    "lost_messages",
    "poorly_carried",
    "repeated_messages",
    "late_messages",
    "clog",
    "misrouted",
    "stranger",
    "holed_log",
    "echoes",
    "power",
    "power_in_io",
    "blackout",
    "lose_disk",
    "slow",
    "rot",
    "rot_snapshot",
    "bad_copy",
    "lose_copies",
    "unreadable",
    "rot_superblock",
    "full_disk",
    "failed_sync",
    "hang_disk",
    "stalled_disk",
    "misdirected",
    "lost_write",
    "older_superblock",
    "crowd",
    "ambush",
    "alone_with_its_log",
    "forgotten_view",
    "cornered",
    "dozing",
    "return",
    "pendulum",
    "struck_bootstrap",
    "struck_transfer",
    "rolled_back",
)
# Of seeds with brokers, which have all of them beside their other faults.
KINDS_OF_BROKERS: Final = (
    "kill_broker",
    "pause_broker",
    "cut_broker",
    "resign_broker",
    "lose_broker_disk",
)
ALL_KINDS: Final = (*KINDS, *KINDS_OF_BROKERS)
"""What a whole campaign has to have gone through."""
# Known by name, and drawn for no seed.
APART: Final = ("lost_syncs", "clock")


@dataclass(frozen=True, slots=True)
class PlannedFault:
    """One fault. Whom it strikes depends on the run; what it draws comes from its own seed."""

    number: int
    at_ms: int
    kind: str
    seed: int


def plan(
    seed: int, kinds: Sequence[str], seconds: int, every_ms: tuple[int, int] = EVERY_MS
) -> tuple[PlannedFault, ...]:
    """Return the faults of a run, in the order of their times; `every_ms` bounds their distances.

    A longer run has the same faults, and others after them. Those of brokers have a plan of their
    own, so that the others are the same without them.
    """
    of_brokers = [kind for kind in kinds if kind in KINDS_OF_BROKERS]
    others = [kind for kind in kinds if kind not in KINDS_OF_BROKERS]
    planned = [
        *_planned(Random(f"faults {seed}"), others, seconds, every_ms, 0),
        *_planned(
            *(Random(f"faults of brokers {seed}"), of_brokers, seconds),
            *(_BROKERS_EVERY_MS, _FIRST_OF_BROKERS),
        ),
    ]
    return tuple(sorted(planned, key=lambda fault: fault.at_ms))


def _planned(
    random: Random,
    kinds: Sequence[str],
    seconds: int,
    every_ms: tuple[int, int],
    first_number: int,
) -> Iterator[PlannedFault]:
    at_ms = random.randint(*every_ms)
    for number in count(first_number):
        if not kinds or at_ms >= seconds * _MS_PER_S:
            return
        kind = random.choice(kinds)
        yield PlannedFault(number, at_ms, kind, random.getrandbits(64))
        at_ms += random.randint(*every_ms)
