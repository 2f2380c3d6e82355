"""What opening the journal has found and mended, told to whoever reads the log of the process."""

from __future__ import annotations

import logging

from coordinator.journal.opening import Recovery
from viewstamp.telemetry import fields

_log = logging.getLogger(__name__)


def log_findings(found: Recovery) -> None:
    """Log a warning for each kind of finding that there was."""
    for what, text in (
        (found.cut, "the journal ended in a torn record, never acknowledged, which was cut off"),
        (found.repaired_headers, "damaged segment headers of the journal were rewritten"),
        (found.stray_sectors, "space of the journal that was never used holds garbage"),
    ):
        if what:
            _log.warning(text, extra=fields(found=str(what)))
