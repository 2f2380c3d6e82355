"""What commands may cost: rows touched, bytes answered, effects. Decided at log order.

A log entry that costs too much is worse than a wrong one: every replica pays for it, again after
every restart. So a stage has a budget for each prepare, and what lies beyond is refused or put off,
alike on every replica, since the budget counts rows and bytes and reads no clock.

A *row* is the unit of work: about a microsecond of an ordinary machine.

- Each command may touch a few rows, and answer a few bytes, whatever the others of its prepare did:
  so no expensive command causes the refusal of a cheap one.
- Further rows come out of a pool that the commands of a prepare share, first come first served in
  log order. No single command may take more rows than the full pool has.
- Effects have been decided by another stage and cannot be refused. Effects that reach far have
  their own allowance; the rest stays in the state, for later commands.
- So do internal commands, which nobody would repeat if they were refused: they are put off.

`docs/adr/0018-cost-at-log-order.md` has the arithmetic.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from viewstamp import limits
from viewstamp.api.errors.v1 import errors_pb2
from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.errors import Refusal

# When the same command may fit: another prepare begins within this time. It is part of the refusal,
# so it is a constant of the build, like the refusal's reason.
RETRY_DELAY_MS: Final = 100

# Bytes of a prepare, and of one session in it. Before the bounds a longer reply never reached its
# client, and many such replies at once hardly reached their coordinator.
_ANSWERS: Final = (limits.PREPARE_ANSWERS_BYTES_MAX, limits.PREPARE_ANSWERS_BYTES_MAX)
_ANSWERS_BEFORE: Final = (limits.APPLY_ANSWERS_BYTES_MAX, limits.MESSAGE_BYTES_MAX)


class Pools(NamedTuple):
    """What one command, and all of one prepare, may take at one stage."""

    command_rows: int
    rows: int
    cascade_rows: int
    chore_rows: int
    answer_bytes: int
    # What the commands of one session in it may answer, and of callers without one each.
    session_answer_bytes: int


def pools_of(feature_level: int) -> Pools:
    """Return the pools at a level.

    Entries from before the bounds were acknowledged without them. So their pools are larger than
    what their build could carry out, and still small enough to survive each entry.
    """
    is_bounded = feature_level >= limits.FEATURE_LEVEL_BOUNDED
    times = 1 if is_bounded else limits.UNBOUNDED_LEVEL_POOLS
    answers, of_session = _ANSWERS if is_bounded else _ANSWERS_BEFORE
    return Pools(
        command_rows=times * limits.COMMAND_ROWS_MAX,
        rows=times * limits.PREPARE_ROWS_MAX,
        cascade_rows=times * limits.PREPARE_CASCADE_ROWS_MAX,
        chore_rows=times * limits.PREPARE_CHORE_ROWS_MAX,
        answer_bytes=answers,
        session_answer_bytes=of_session,
    )


class Allowance:
    """Rows that steps of a longer work may take until none are left."""

    __slots__ = ("left",)

    def __init__(self, rows: int) -> None:
        """Begin with `rows` rows."""
        self.left = rows

    def take(self, rows: int) -> bool:
        """Take the rows of the next step, unless nothing is left. The last step may take more."""
        if self.left <= 0:
            return False
        self.left -= rows
        return True

    def spend(self, rows: int) -> None:
        """Count the last step's cost beyond what it took: the next one may have to wait."""
        self.left -= rows


class Budget:
    """What is left to the commands and effects of one prepare at one stage."""

    __slots__ = (
        "pools", "rows_left", "answer_bytes_left", "cascade", "chore_rows_left", "session_id",
        "_op", "_revision", "_rows_spent", "_bytes_spent", "_answered",
    )  # fmt: skip

    def __init__(self) -> None:
        """Begin before the first prepare."""
        self.session_id = limits.GATEWAY_SESSION_ID  # of the span that is handled
        self._revision = -1
        self._rows_spent = 0
        self._bytes_spent = 0
        self._renew(0, limits.FEATURE_LEVEL_BOUNDED)

    def begin(self, op: int, feature_level: int) -> None:
        """Begin a logged batch: the batches of one prepare share one budget, and one level."""
        if op != self._op:
            self._renew(op, feature_level)

    def charge(self, revision: int, rows: int) -> None:
        """Take rows for the command of a revision. Raises Refusal COST_EXCEEDED."""
        self._turn_to(revision)
        spent = self._rows_spent + rows
        if spent > self.pools.command_rows:
            raise _beyond("command", spent, self.pools.command_rows)
        shared = spent - max(self._rows_spent, limits.COMMAND_FREE_ROWS)
        if shared > 0:
            if shared > self.rows_left:
                raise _beyond("prepare", shared, self.pools.rows, retry_delay_ms=RETRY_DELAY_MS)
            self.rows_left -= shared
        self._rows_spent = spent

    def answer(self, revision: int, count: int) -> bool:
        """Take `count` bytes of an answer for a revision's command; return whether they were
        left."""
        self._turn_to(revision)
        spent = self._bytes_spent + count
        shared = spent - max(self._bytes_spent, limits.ANSWER_FREE_BYTES)
        if shared > 0 and not self._take_answer(shared):
            return False
        self._bytes_spent = spent
        return True

    def fitting(self, revision: int, error: errors_pb2.Error) -> errors_pb2.Error:
        """Return a refusal as it is answered: only its reason if its details have no room."""
        if self.answer(revision, error.ByteSize()):
            return error
        return errors_pb2.Error(reason=error.reason)

    def all_fitting(
        self, first_revision: int, errors: Iterable[errors_pb2.IndexedError]
    ) -> list[errors_pb2.IndexedError]:
        """Return the refusals of a span as they are answered."""
        return [
            errors_pb2.IndexedError(
                index=indexed.index,
                error=self.fitting(first_revision + indexed.index, indexed.error),
            )
            for indexed in errors
        ]

    def afford(self, rows: int) -> bool:
        """Take the rows of an internal command if they fit into this prepare; return whether they
        did.

        The first one always fits, however large: otherwise it never would.
        """
        if rows <= limits.COMMAND_FREE_ROWS:
            return True
        if self.chore_rows_left < self.pools.chore_rows and rows > self.chore_rows_left:
            return False
        self.chore_rows_left -= rows
        return True

    def _take_answer(self, count: int) -> bool:
        """Take bytes of what the prepare, and this caller in it, may answer; return if they were
        left."""
        if count > self.answer_bytes_left:
            return False
        if self.pools.session_answer_bytes < self.pools.answer_bytes:
            # Without a session each command is its own request.
            caller = self.session_id or -self._revision
            answered = self._answered.get(caller, 0) + count
            if answered > self.pools.session_answer_bytes:
                return False
            self._answered[caller] = answered
        self.answer_bytes_left -= count
        return True

    def _renew(self, op: int, feature_level: int) -> None:
        self._op = op
        pools = self.pools = pools_of(feature_level)
        self.rows_left = pools.rows
        self.answer_bytes_left = pools.answer_bytes
        self._answered: dict[int, int] = {}  # by session, or by command without one
        self.cascade = Allowance(pools.cascade_rows)
        self.chore_rows_left = pools.chore_rows
        self._turn_to(-1)

    def _turn_to(self, revision: int) -> None:
        """Begin another command. The parts of a transaction are one command."""
        if revision != self._revision:
            self._revision = revision
            self._rows_spent = 0
            self._bytes_spent = 0


def too_long_an_answer(answer_bytes: int, limit: int) -> errors_pb2.Error:
    """Return the refusal of a command, taken back, whose answer has no room."""
    return Refusal.of(
        Reason.REASON_ANSWER_TOO_LARGE,
        "prepare",
        bytes=answer_bytes,
        limit=limit,
        retry_delay_ms=RETRY_DELAY_MS,
    ).to_error()


def _beyond(scope: str, cost: int, limit: int, **details: object) -> Refusal:
    return Refusal.of(
        Reason.REASON_COST_EXCEEDED, scope, cost=cost, limit=limit, scope=scope, **details
    )
