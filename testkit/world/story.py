"""The transcript of a run for readers: what happened, and what clients were told of bad keys."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from testkit.oracles.history import Operation
from testkit.world.schedule import NS_PER_MS

if TYPE_CHECKING:
    from testkit.world.workload import Heard
    from testkit.world.world import World

# A replica that cannot start fills the end of a transcript. What led to that is at its beginning.
FIRST_LINES_MAX: Final = 250
LAST_LINES_MAX: Final = 150
# What happens at every start and says nothing of a failure.
_DULL: Final = ("link to peer changed", "an Apply stream is", "info ready ")


def story_of(world: World, heard: Heard, violations: Sequence[str]) -> list[str]:
    """Return the first and the last lines of a run, in the order of their times."""
    keys = {key for key, _ in heard.operations if any(v.startswith(key) for v in violations)}
    lines = [(_ms_of(line), line) for line in world.schedule.transcript if not _is_dull(line)]
    for key, operation in heard.operations:
        if key in keys:
            lines += _lines_of(key, operation)
    told = [line for _, line in sorted(lines, key=lambda each: each[0])]
    left_out = len(told) - FIRST_LINES_MAX - LAST_LINES_MAX
    if left_out <= 0:
        return told
    return [*told[:FIRST_LINES_MAX], f"({left_out} lines)", *told[-LAST_LINES_MAX:]]


def _is_dull(line: str) -> bool:
    # Processes whose names begin with an s ask for the status in the end.
    return any(part in line for part in _DULL) or line.split()[1].startswith("s")


def _ms_of(line: str) -> float:
    return float(line.split(maxsplit=1)[0])


def _lines_of(key: str, operation: Operation) -> list[tuple[float, str]]:
    """Return a call and its answer."""
    who = f"c{operation.client // 1_000_000}"
    what = f"{operation.kind} {key} {operation.argument or ''}".rstrip()
    called_ms = operation.called_at / NS_PER_MS
    lines = [(called_ms, f"{called_ms:12.3f} {who:10} asks {what} ({operation.client})")]
    if operation.returned_at is not None:
        ms = operation.returned_at / NS_PER_MS
        at = "" if operation.revision is None else f" at revision {operation.revision}"
        lines.append(
            (ms, f"{ms:12.3f} {who:10} is told {what}: {operation.output}{at} ({operation.client})")
        )
    return lines
