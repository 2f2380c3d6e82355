"""What to do about a refusal of a whole request or of a connection: one table."""

from __future__ import annotations

from enum import Enum
from types import MappingProxyType
from typing import Final

from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.errors import Refusal, retry_delay_ms

BACKOFF_FIRST_S: Final = 0.01
BACKOFF_MAX_S: Final = 1.0
# Replicas that answer, but wait for a primary, will soon have one.
ELECTION_BACKOFF_MAX_S: Final = 0.05
# A replica that said so often in a row to try again may be cut off; another one may not be.
RETRIES_BEFORE_MOVING: Final = 6
# Detail of NOT_PRIMARY that says where the primary is.
PRIMARY_DETAIL: Final = "address"
# No refusal makes a caller wait for longer than this.
RETRY_DELAY_MAX_S: Final = 30.0
# Detail of a replica that has not yet applied what another one answered; it will catch up.
LAGGING_DETAIL: Final = "last_applied"


class RetryVerdict(Enum):
    """What to do about a refusal."""

    RETRY = "send the same again, a little later"
    RECONNECT = "send the same again, to another replica"
    REOPEN = "send the same again, over a new stream to the same replica"
    RENEW = "log in again, then send the same"
    ENDED = "the session is over"
    LOST = "the answer is gone: nobody can say what happened"
    FINAL = "tell the caller"


# Another replica may answer.
ELSEWHERE: Final = frozenset({RetryVerdict.RETRY, RetryVerdict.RECONNECT})

# Reasons not listed are final.
VERDICTS: Final = MappingProxyType(
    {
        Reason.REASON_NOT_PRIMARY: RetryVerdict.RECONNECT,
        Reason.REASON_VIEW_CHANGE: RetryVerdict.RETRY,
        Reason.REASON_DOMAIN_RESTARTING: RetryVerdict.RETRY,
        Reason.REASON_NO_QUORUM: RetryVerdict.RETRY,
        Reason.REASON_OVERLOADED: RetryVerdict.RETRY,
        Reason.REASON_QUOTA_EXCEEDED: RetryVerdict.RETRY,
        # It is safe to send the request again under the same number.
        Reason.REASON_OUTCOME_UNKNOWN: RetryVerdict.RETRY,
        # The primary said this: the newer stream was opened there.
        Reason.REASON_STREAM_REPLACED: RetryVerdict.REOPEN,
        # A watch goes on behind the revision that the refusal names.
        Reason.REASON_ACCESS_CHANGED: RetryVerdict.REOPEN,
        # Another request had the number, so nobody can say what happened to this one.
        Reason.REASON_REQUEST_NUMBER_REUSED: RetryVerdict.LOST,
        Reason.REASON_REQUEST_GAP: RetryVerdict.RETRY,
        Reason.REASON_UNAUTHENTICATED: RetryVerdict.RENEW,
        Reason.REASON_SESSION_EVICTED: RetryVerdict.ENDED,
        Reason.REASON_REQUEST_TOO_OLD: RetryVerdict.LOST,
    }
)

# One of several commands may be the cause, so each is sent again in a request of its own.
BLAMES_CONTENT: Final = frozenset(
    {
        Reason.REASON_MALFORMED_REQUEST,
        Reason.REASON_COMMAND_TOO_LARGE,
        Reason.REASON_UNIMPLEMENTED,
        Reason.REASON_SESSION_REQUIRED,
    }
)


def verdict_on(refusal: Refusal) -> RetryVerdict:
    """Return what to do about a refusal of a whole request."""
    if LAGGING_DETAIL in refusal.details:
        return RetryVerdict.RETRY
    return VERDICTS.get(refusal.reason, RetryVerdict.FINAL)


def told_delay_s(refusal: Refusal) -> float:
    """Return the seconds that a refusal asks to wait before the next attempt; 0 for none."""
    return min(retry_delay_ms(refusal) / 1000, RETRY_DELAY_MAX_S)


def copy_of(refusal: Refusal) -> Refusal:
    """Copy a refusal, because each caller must raise an exception of its own."""
    return Refusal.from_error(refusal.to_answer())


class Backoff:
    """Growing pauses between attempts, with jitter so that clients do not return as one."""

    def __init__(self, max_s: float = BACKOFF_MAX_S) -> None:
        self._max_s = max_s
        self._next_s = BACKOFF_FIRST_S
        self.attempts = 0
        """How many pauses were taken since the last success."""

    def next_s(self) -> float:
        """Return how long to wait before the next attempt, in seconds."""
        # Imported late: most connections need no pause.
        import random

        pause_s = self._next_s * random.uniform(0.5, 1.0)
        self._next_s = min(2 * self._next_s, self._max_s)
        self.attempts += 1
        return pause_s

    def reset(self) -> None:
        """Start again with the shortest pause, because an attempt succeeded."""
        self._next_s = BACKOFF_FIRST_S
        self.attempts = 0
