"""Records runs of the world: the shipped coordinator in virtual time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from testkit.model.observed import ObservedRun
from testkit.model.recorder import RunRecorder, listening
from testkit.model.windows import windows
from testkit.world.options import SNAPSHOT_NEVER, WorldOptions, flags
from testkit.world.run import WorldRun

REPLICAS: Final = 3
LINKS: Final = ("kill", "pause", "isolate", "cut")
# What the network of the model does, too: it loses, doubles and overtakes.
MESSAGES: Final = ("kill", "lost_messages", "repeated_messages", "late_messages", "partition")
SECONDS: Final = 4


def options_of(faults: tuple[str, ...], seconds: int) -> WorldOptions:
    """Return a run of three replicas without snapshots."""
    return WorldOptions(
        replicas=REPLICAS,
        clients=2,
        callers=1,
        seconds=seconds,
        faults=faults,
        every_ms=(100, 900),
        flags=flags(snapshot_commands=SNAPSHOT_NEVER),
    )


def of_links(seed: int, changes: int, seconds: int = SECONDS) -> Iterator[ObservedRun]:
    """Yield windows of a run whose processes and links are hurt."""
    return _recorded(seed, changes, options_of(LINKS, seconds))


def of_messages(seed: int, changes: int, seconds: int = SECONDS) -> Iterator[ObservedRun]:
    """Yield windows of a run whose messages are lost, doubled and overtaken."""
    return _recorded(seed, changes, options_of(MESSAGES, seconds))


def _recorded(seed: int, changes: int, options: WorldOptions) -> Iterator[ObservedRun]:
    """Raises AssertionError if the run fails."""
    recorder = RunRecorder()
    with listening(recorder.stepped):
        outcome = WorldRun(seed, options).run()
    assert outcome.is_good, outcome.violations
    yield from windows(recorder.entries, recorder.seen, replica_count=REPLICAS, changes=changes)
