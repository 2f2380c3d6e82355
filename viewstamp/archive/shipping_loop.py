"""Rounds of a shipper, one after another, until somebody ends them."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from viewstamp.archive.archive_errors import OtherHistory, ShipperInUse, StoreUnfit, WrongKey
from viewstamp.archive.committed_chain import CommittedHead
from viewstamp.archive.shipper import Shipper, ShipReport
from viewstamp.files_error import FilesError
from viewstamp.format import FormatError

ROUND_MS: Final = 1_000
# After rounds that fail: twice as long after each, up to this.
ROUND_MS_MAX: Final = 30_000
# Another try changes nothing about them.
FINAL: Final = (OtherHistory, StoreUnfit, WrongKey, ShipperInUse)

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RoundTold:
    """What is told of a round: where the archive is, and why the round failed, if it did."""

    report: ShipReport
    failures: int = 0
    reason: str = ""
    message: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return it for programs."""
        told = asdict(self.report) | {"lag_ops": self.report.lag_ops}
        return told | {"failures": self.failures, "reason": self.reason, "message": self.message}


def ship_rounds(
    shipper: Shipper,
    head: Callable[[], CommittedHead | None],
    tell: Callable[[RoundTold], None],
    has_ended: Callable[[int], bool],
    *,
    as_backup: bool = False,
) -> None:
    """Ship until `has_ended`, which waits for so many milliseconds, says so.

    A round that fails is told, and tried again later. Raises what no other try changes.
    """
    told = RoundTold(ShipReport())
    pause_ms = ROUND_MS
    while True:
        try:
            report = shipper.round(head(), as_backup=as_backup)
            told = RoundTold(report, told.failures)
            pause_ms = ROUND_MS
        except FINAL:
            raise
        except (FilesError, FormatError, OSError) as error:
            told = _failed(told, shipper.so_far(), error)
            pause_ms = min(2 * pause_ms, ROUND_MS_MAX)
        tell(told)
        if has_ended(pause_ms):
            return


def _failed(
    told: RoundTold, so_far: ShipReport, error: FilesError | FormatError | OSError
) -> RoundTold:
    """Count a failure, and tell what the round had shipped before it."""
    reason = error.reason if isinstance(error, FilesError) else type(error).__name__
    message = error.message if isinstance(error, FilesError) else str(error)
    _log.warning("a round of shipping failed: %s: %s", reason, message)
    before = told.report
    still = replace(
        so_far,
        committed_op=max(so_far.committed_op, before.committed_op),
        is_shipping=before.is_shipping,
        waits_for=before.waits_for,
    )
    return RoundTold(still, told.failures + 1, reason, message)
