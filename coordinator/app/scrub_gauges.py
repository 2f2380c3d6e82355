"""What the page of metrics shows of the scrubber."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Final

from coordinator.scrub.remedies import DamagedPart
from coordinator.scrub.tally import ScrubTally
from coordinator.telemetry.metrics import Gauge

_US_PER_SECOND: Final = 1_000_000


def gauges_of_scrubber(tally: ScrubTally) -> tuple[Gauge, ...]:
    """Return the numbers of the scrubber, which are counted since the process began."""
    return (
        Gauge(
            "viewstamp_scrub_completed_timestamp_seconds",
            "When everything was read from the disk once, in seconds since 1970; 0 before that.",
            "",
            lambda: [("", tally.completed_us / _US_PER_SECOND)],
        ),
        Gauge(
            "viewstamp_scrub_passes",
            "How often everything was read from the disk.",
            "",
            lambda: [("", tally.passes)],
            is_counter=True,
        ),
        Gauge(
            "viewstamp_scrub_read_bytes",
            "Bytes that the scrubber has read from the disk.",
            "",
            lambda: [("", tally.read_bytes)],
            is_counter=True,
        ),
        _by_part(
            "found", "Damage that the scrubber has found.", lambda: tally.found, is_counter=True
        ),
        _by_part(
            "mended", "Damage of those that was mended.", lambda: tally.mended, is_counter=True
        ),
        _by_part("standing", "Damage that is known and not mended.", lambda: tally.standing),
    )


def _by_part(
    name: str, text: str, counts: Callable[[], Counter[DamagedPart]], *, is_counter: bool = False
) -> Gauge:
    def values() -> Iterable[tuple[str, float]]:
        return [(part.value, counts()[part]) for part in DamagedPart]

    return Gauge(f"viewstamp_scrub_{name}", text, "part", values, is_counter)
