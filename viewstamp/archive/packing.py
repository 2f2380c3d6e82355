"""How manifests stay small: parts are packed into indexes, levels upon levels. Pure.

There are at most FANOUT - 1 parts of a level behind those of higher levels. So an archive of N
pieces has a manifest of about FANOUT * log(N) records. What retention leaves of an index is taken
out of it, so before those of higher levels, there are at most that many, too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from viewstamp.format.archive_manifest import ARCHIVED_GAPS_MAX, ArchiveManifest
from viewstamp.format.archive_parts import LEVEL_MAX, LogPart

FANOUT: Final = 128


def packed(
    parts: Sequence[LogPart],
    write_index: Callable[[Sequence[LogPart]], LogPart],
    fanout: int = FANOUT,
) -> tuple[LogPart, ...]:
    """Return parts of which no more than allowed are of one level at the end."""
    result = list(parts)
    while (run := _run_at_end(result)) and len(run) >= fanout and run[0].level < LEVEL_MAX:
        result[len(result) - len(run) :] = [write_index(run)]
    return tuple(result)


def _run_at_end(parts: Sequence[LogPart]) -> Sequence[LogPart]:
    """Return the parts at the end that are of the level of the last one."""
    start = len(parts)
    while start and parts[start - 1].level == parts[-1].level:
        start -= 1
    return parts[start:]


def without_ops_to(
    parts: Sequence[LogPart], op: int, read_index: Callable[[LogPart], Sequence[LogPart]]
) -> tuple[LogPart, ...]:
    """Return the parts without those that end at or below an op; an index is taken apart for it."""
    result: list[LogPart] = []
    for part in parts:
        if part.last_op <= op:
            continue
        if part.first_op > op or part.is_piece:
            result.append(part)
        else:
            result += without_ops_to(read_index(part), op, read_index)
    return tuple(result)


def with_part(manifest: ArchiveManifest, part: LogPart) -> ArchiveManifest:
    """Return a manifest with one part more; ops that are missing before it become a gap."""
    gaps = manifest.gaps
    reached_op = manifest.last_op
    if not manifest.parts and manifest.snapshots:
        reached_op = manifest.snapshots[0].cut_op
    if reached_op and part.first_op > reached_op + 1:
        gaps = joined((*gaps, (reached_op + 1, part.first_op - 1)))
    return replace(manifest, parts=(*manifest.parts, part), gaps=gaps)


def joined(
    gaps: Sequence[tuple[int, int]], gaps_max: int = ARCHIVED_GAPS_MAX
) -> tuple[tuple[int, int], ...]:
    """Return at most so many gaps: of too many the oldest become one, with what lies between."""
    surplus = len(gaps) - gaps_max
    if surplus <= 0:
        return tuple(gaps)
    return ((gaps[0][0], gaps[surplus][1]), *gaps[surplus + 1 :])
