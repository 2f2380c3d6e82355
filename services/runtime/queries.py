"""Reads of one batch: how long they run, and what happens to the rest.

Reads keep the commands behind them waiting. So a batch of reads stops once it has used up its
slice: the remaining reads are postponed, and the coordinator asks for them again, behind other
callers. One read also has its own share of bytes and time; its calls beyond that are refused
without running their handlers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Protocol

from services.runtime.answers import Answers, DeferredQuery, ReadAnswers
from services.runtime.callers import callers_of, speak_for
from services.runtime.domain import Call, Deferred
from services.runtime.failures import Alarm, ApplyError
from services.runtime.handlers import Record
from services.runtime.spans import decode, decode_contexts
from viewstamp.api.domain.v1 import domain_service_pb2 as pb
from viewstamp.limits import APPLY_ANSWERS_BYTES_MAX, KIB, MESSAGE_BYTES_MAX, READ_REFUSAL_BYTES

# The answers of one read, so that the message around them is not larger than clients take.
READ_ANSWERS_BYTES_MAX: Final = MESSAGE_BYTES_MAX - 2 * KIB


class Patience(Protocol):
    """How long the reads of a batch may run; the machine itself knows no time."""

    def begins(self) -> bool:
        """Whether one more read may begin; it is taken to begin now in any case."""
        ...

    def is_gone(self) -> bool:
        """Whether the read that began last has had its time."""
        ...


class Endless:
    """Has all the time of the world."""

    def begins(self) -> bool:
        """Return True."""
        return True

    def is_gone(self) -> bool:
        """Return False."""
        return False


ENDLESS: Final = Endless()


@dataclass(frozen=True, slots=True)
class AnsweredQueries:
    """The answer to a batch, and the reads in it whose own answers follow.

    `digests` are those that ask for the digest of the state as it is now.
    """

    reply: pb.BatchReply
    deferred: list[DeferredQuery]
    digests: list[int]


class BatchReads:
    """What the reads of one batch have used up.

    `deferred` are those whose own answers follow, `digests` those that ask for the digest of the
    state as it is now. `clock_us` is the time that the coordinator tells them; 0 in the log.
    """

    __slots__ = (
        "is_in_log",
        "clock_us",
        "deferred",
        "digests",
        "_patience",
        "_answers_bytes",
        "_read_bytes",
        "_has_read",
        "_is_postponed",
    )

    def __init__(self, patience: Patience, *, is_in_log: bool, clock_us: int = 0) -> None:
        """Begin with nothing read. What is in the log is never postponed, and knows no clock."""
        self.is_in_log = is_in_log
        self.clock_us = 0 if is_in_log else clock_us
        self.deferred: list[DeferredQuery] = []
        self.digests: list[int] = []
        self._patience = patience
        self._answers_bytes = 0
        self._read_bytes = 0  # of the read under way
        self._has_read = False
        self._is_postponed = False  # the read under way

    @classmethod
    def of(cls, batch: pb.Batch, patience: Patience) -> BatchReads:
        """Begin with the reads of a batch."""
        return cls(patience, is_in_log=batch.sequence > 0, clock_us=batch.clock_us)

    def postpones(self, item: pb.QueryItem) -> bool:
        """Decide whether a read has to wait for another batch, with all its items or with none.

        The first of a batch never has, so that every batch gets something done.
        """
        if self.is_in_log:
            return False
        if not item.continues:
            may_begin = self._patience.begins()
            has_room = self._answers_bytes + MESSAGE_BYTES_MAX <= APPLY_ANSWERS_BYTES_MAX
            self._is_postponed = self._has_read and not (may_begin and has_room)
            self._has_read = True
            self._read_bytes = 0
        return self._is_postponed

    def counted(self, results: bytes) -> bytes:
        """Return the answer of a builtin read, which takes room of the batch like any other.

        Raises ApplyError in a batch of the log: what is kept depends on when a process began.
        """
        if self.is_in_log:
            raise ApplyError("a batch of the log asks for recent changes")
        self._answers_bytes += len(results)
        return results

    def answer_digest(
        self,
        answer: pb.QueryOutcome,
        known: bytes | None,
        is_deferred: bool,
        find: Callable[[], bytes],
    ) -> bytes | None:
        """Answer by the digest of the state, or announce it; return it if it is known now.

        Walks over the state once, however often it is asked for meanwhile.
        """
        if known is None and is_deferred and not self.is_in_log:
            answer.deferred = True
            self.digests.append(answer.query_id)
            return None
        answer.state_digest = find() if known is None or self.is_in_log else known
        return answer.state_digest

    def collect(
        self, where: str, item: pb.QueryItem, revision: int, alarms: list[Alarm]
    ) -> ReadAnswers:
        """Return what collects the answers of an item, as far as there is room for them."""
        # One message holds the answers to all spans of a read, and the refusals of what it lacks.
        room_bytes = READ_ANSWERS_BYTES_MAX - self._read_bytes
        room_bytes -= READ_REFUSAL_BYTES * (item.count - 1)
        return ReadAnswers(where, revision, alarms, room_bytes, self._patience.is_gone)

    def finish(self, item: pb.QueryItem, answers: Answers, answer: pb.QueryOutcome) -> None:
        """Take over the answers of an item, or announce that they follow."""
        self._answers_bytes += answers.bytes
        self._read_bytes += answers.bytes
        if answers.is_deferred:
            answer.deferred = True
            self.deferred.append(DeferredQuery(item.query_id, answers))
        else:
            answer.results = answers.joined()
            answer.errors.extend(answers.errors)


def answers_of(
    record: Record,
    item: pb.QueryItem,
    call: Call,
    answers: Answers,
    read: Callable[[Callable[..., Any], Any, Call], bytes | Deferred],
) -> None:
    """Answer the requests of an item one by one; `read` runs a handler that leaves no trace."""
    span = decode(record.request, record.batch, item.items, item.count, item.refused)
    contexts = decode_contexts(item.contexts, item.count)
    callers = callers_of(item)
    for index, request in enumerate(span.requests):
        if index in span.skipped:
            answers.skip(span.skipped[index])
            continue
        if contexts:
            call.context = contexts[index]
        if callers:
            speak_for(callers[index], call)
        answers.add(read, record.handler, request, call)
