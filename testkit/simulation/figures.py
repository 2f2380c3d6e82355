"""What a campaign must have gone through to count, and its figures as tables.

The numbers are those of a whole campaign, of `WHOLE_SEEDS` long seeds. A shorter one is judged by
its seeds alone, and told what it would come to at this rate.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final

from coordinator import vsr
from coordinator.vsr import replica
from testkit.partitions import SHAPES
from testkit.simulation.branches import all_branches
from testkit.simulation.marks import sent_mark
from testkit.simulation.options import FaultKind
from testkit.simulation.outcome import Outcome

WHOLE_SEEDS: Final = 2_000
FAULTS_MIN: Final = 1_000
TRANSFERS_MIN: Final = 100
MARK_MIN: Final = 10
MS_PER_HOUR: Final = 3_600_000

VIEW_CHANGES: Final = "view change"
TRANSFERS: Final = "state transfer"

# Marks of the vocabulary that an honest cluster never makes, each with the reason.
_HALTS: Final = "a replica that halts fails its seed"
_FORGED: Final = "no member sends it; the driver has checked sender and checksums before"
EXCUSED: Final = {
    "status halted": _HALTS,
    "refused halted": _HALTS,
    "start halt short log": _HALTS,
    "start halt without superblock": _HALTS,
    "dropped not_from_primary": _FORGED,
    "dropped prepare_of_other_view": _FORGED,
    "dropped log_replaced": "as good as never among voters; `tests/coordinator/vsr` has it",
    "refused initial_members_changed": "drivers answer the last; `tests/coordinator/vsr` has it",
    "dropped broken_chain": "a backup in the view has its log; the last line before the journal",
}

# What the simulator itself counts, beside what the core's vocabulary has.
OWN_MARKS: Final = (
    "client timeout",
    "client late answer",
    "commit repeated in vain",
    "crash killed between two effects",
    "crash restarts from a snapshot",
    "job adopt",
    "job snapshot",
    "network message cut off",
    "network path full",
    "power of all",
    "process ended by JournalFailed",
    "no space for a segment",
    "told unfit",
    "told fit",
    "journal kept for others",
    "job truncate",
    "echo",
    "moment stalled",
    "moment dozing",
    "moment alone with its log",
    "moment forgotten view",
    "moment pendulum",
    "moment return",
    "moment broken links",
    "read damaged record",
    "snapshot durable",
    VIEW_CHANGES,
)


def required() -> dict[str, int]:
    """How often each thing must have happened in a whole campaign."""
    counts = {f"fault {kind.value}": FAULTS_MIN for kind in FaultKind}
    counts[TRANSFERS] = TRANSFERS_MIN
    names = [sent_mark(message) for message in replica.MESSAGE_HANDLERS]
    names += [f"dropped {rule.value}" for rule in vsr.DropRule]
    names += [f"status {status.value}" for status in vsr.ReplicaStatus]
    names += [f"refused {reason.value}" for reason in vsr.RefusalReason]
    names += [f"partition {shape}" for shape in SHAPES]
    names += [*all_branches(), *OWN_MARKS]
    counts.update((name, MARK_MIN) for name in names if name not in EXCUSED)
    return counts


def total(outcomes: Iterable[Outcome]) -> Counter[str]:
    """The counts of all seeds together."""
    counts: Counter[str] = Counter()
    for outcome in outcomes:
        counts.update(outcome.counts)
    return counts


def shortfalls(outcomes: Sequence[Outcome]) -> list[str]:
    """What came too rarely, by the rate of these seeds; nothing of a campaign without any."""
    counts = total(outcomes)
    scale = WHOLE_SEEDS / max(1, len(outcomes))
    share = 1.0 if scale < 1 else scale
    return [
        f"{name}: {counts[name]:,} in {len(outcomes):,} seeds, "
        f"{least:,} in {WHOLE_SEEDS:,} are wanted"
        for name, least in sorted(required().items())
        if counts[name] * share < least
    ]


def markdown(outcomes: Sequence[Outcome]) -> str:
    """The figures of a campaign as they stand in `docs/simulation.md`."""
    counts = total(outcomes)
    faults = sorted((counts[f"fault {kind.value}"], kind.value) for kind in FaultKind)
    lines = [
        *_rows(("figure", "value"), _headline(outcomes, counts)),
        "",
        *_rows(("fault", "times", "seeds"), [_counted(outcomes, "fault ", n) for _, n in faults]),
        "",
        *_rows(("rarest marks", "times", "seeds"), _rarest(outcomes, counts)),
    ]
    return "\n".join(lines) + "\n"


def _headline(outcomes: Sequence[Outcome], counts: Counter[str]) -> list[tuple[str, ...]]:
    failed = sum(not outcome.is_good for outcome in outcomes)
    hours = sum(outcome.simulated_ms for outcome in outcomes) / MS_PER_HOUR
    took_s = sum(outcome.took_s for outcome in outcomes)
    marks = [name for name, least in required().items() if least == MARK_MIN]
    return [
        ("seeds", f"{len(outcomes):,}"),
        ("violations", f"{failed:,}"),
        ("simulated time", f"{hours:,.1f} h"),
        ("processor time", f"{took_s / 60:,.0f} min, {took_s / len(outcomes):.2f} s for a seed"),
        ("commands", f"{sum(outcome.commands for outcome in outcomes):,}"),
        ("entries of the log", f"{sum(outcome.ops for outcome in outcomes):,}"),
        ("faults", f"{sum(counts[f'fault {kind.value}'] for kind in FaultKind):,}"),
        ("processes started", f"{sum(_starting(counts, 'start ')):,}"),
        ("view changes", f"{counts[VIEW_CHANGES]:,}"),
        ("snapshots durable on a replica", f"{counts['snapshot durable']:,}"),
        ("state transfers", f"{counts[TRANSFERS]:,}"),
        (f"marks, of which each came {MARK_MIN} times or more", f"{_met(marks, counts)}"),
    ]


def _met(marks: Sequence[str], counts: Counter[str]) -> str:
    return f"{sum(counts[name] >= MARK_MIN for name in marks)} of {len(marks)}"


def _starting(counts: Counter[str], prefix: str) -> Iterable[int]:
    return (count for name, count in counts.items() if name.startswith(prefix))


def _counted(outcomes: Sequence[Outcome], prefix: str, name: str) -> tuple[str, ...]:
    times = sum(outcome.counts[prefix + name] for outcome in outcomes)
    seeds = sum(outcome.counts[prefix + name] > 0 for outcome in outcomes)
    return name, f"{times:,}", f"{seeds:,}"


def _rarest(outcomes: Sequence[Outcome], counts: Counter[str]) -> list[tuple[str, ...]]:
    marks = [name for name, least in required().items() if least == MARK_MIN]
    rarest = sorted(marks, key=lambda name: (counts[name], name))[:RAREST_SHOWN]
    return [_counted(outcomes, "", name) for name in rarest]


RAREST_SHOWN: Final = 10


def _rows(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> list[str]:
    cells = [head, tuple("---" for _ in head), *rows]
    return [f"| {' | '.join(row)} |" for row in cells]
