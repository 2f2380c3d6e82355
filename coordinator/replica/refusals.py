"""Refusals for callers whom this replica cannot serve now."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from coordinator import vsr
from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.errors import Refusal

# Refusals that waiting does not cure; the others end as the pipeline moves.
NOT_SERVING: Final = frozenset(
    {
        vsr.RefusalReason.BLANK,
        vsr.RefusalReason.VIEW_CHANGE,
        vsr.RefusalReason.HALTED,
        vsr.RefusalReason.NOT_PRIMARY,
        vsr.RefusalReason.ABDICATING,
        vsr.RefusalReason.OTHER_EPOCH,
    }
)


def not_serving(
    reason: vsr.RefusalReason, primary: int, address_of: Callable[[int], str]
) -> Refusal:
    """Return the refusal for the core's reason; `primary` is that of the present view."""
    if reason is vsr.RefusalReason.NOT_PRIMARY:
        return Refusal(
            Reason.REASON_NOT_PRIMARY,
            f"replica {primary} is the primary: send commands to it",
            primary=primary,
            address=address_of(primary),
        )
    if reason is vsr.RefusalReason.TOO_MANY_READS:
        return Refusal(Reason.REASON_OVERLOADED, "too many reads are waiting already: try again")
    return Refusal(
        Reason.REASON_VIEW_CHANGE,
        f"the replica is not in service ({reason.value}): try again",
        status=reason.value,
    )


def not_read_here(primary: int, address: str, deadline_ms: int) -> Refusal:
    """Return the refusal of a linearizable read that a backup could not answer."""
    return Refusal(
        Reason.REASON_NOT_PRIMARY,
        f"this backup could not answer the read within {deadline_ms} ms: read at the primary, which"
        f" is replica {primary} at {address or 'an unknown address'}, or read with a weaker"
        " consistency",
        deadline_ms=deadline_ms,
        primary=primary,
        address=address,
    )


def outcome_unknown(deadline_ms: int) -> Refusal:
    """Return the refusal of a command that got no answer in time."""
    return Refusal(
        Reason.REASON_OUTCOME_UNKNOWN,
        f"the command got no answer within {deadline_ms} ms and may still take effect:"
        " send it again under its request number, or check before you repeat it",
        deadline_ms=deadline_ms,
        outcome="unknown",
    )


def left_in_the_log() -> Refusal:
    """Return the refusal of commands that the next primary may or may not commit."""
    return Refusal(
        Reason.REASON_OUTCOME_UNKNOWN,
        "the replica is no longer the primary, and the command may still take effect: send it"
        " again under its request number, or check before you repeat it",
        outcome="unknown",
    )
