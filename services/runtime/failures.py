"""What can go wrong in a machine besides a refusal, and whose fault it is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from viewstamp.api.errors.v1 import errors_pb2
from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.errors import Refusal


class ApplyError(Exception):
    """The coordinator and this service disagree on the protocol: nothing more may be applied.

    Continuing would fork the replicas, so the shell ends the process.
    """


# Other replicas do not share these, so they must not be answered like a defect of the code.
LOCAL_FAILURES: Final = (OSError, MemoryError, RecursionError, ApplyError)


@dataclass(frozen=True, slots=True)
class Alarm:
    """A defect: where it showed, at which revision, and what was raised."""

    where: str
    revision: int
    defect: Exception


def internal_error(where: str) -> errors_pb2.Error:
    """Return the answer to a defect, the same on every replica."""
    return Refusal.of(Reason.REASON_INTERNAL, where=where).to_error()
