"""Answers collected one by one, some of them later: reads, and what is resolved."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from services.runtime.domain import Deferred
from services.runtime.failures import LOCAL_FAILURES, Alarm, internal_error
from services.runtime.spans import join
from viewstamp.api.domain.v1 import domain_service_pb2 as pb
from viewstamp.api.errors.v1 import errors_pb2
from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.errors import Refusal
from viewstamp.limits import MESSAGE_BYTES_MAX


class Answers:
    """The answers of one span in index order, with sparse errors.

    A Refusal is answered as it says, a defect as INTERNAL with an alarm; failures of the process
    itself pass through. Together the answers fit one message; those past that are refused.
    `bytes` is what they take so far.
    """

    __slots__ = (
        "errors",
        "is_deferred",
        "bytes",
        "_where",
        "_revision",
        "_alarms",
        "_results",
        "_room_bytes",
    )

    def __init__(
        self, where: str, revision: int, alarms: list[Alarm], room_bytes: int = MESSAGE_BYTES_MAX
    ) -> None:
        """Collect for the method `where`, at `revision`; defects are appended to `alarms`.

        `room_bytes` is less than a message where other answers have to share it.
        """
        self.errors: list[errors_pb2.IndexedError] = []
        self.is_deferred = False
        self._where = where
        self._revision = revision
        self._alarms = alarms
        self._results: list[bytes | Deferred] = []
        self._room_bytes = room_bytes
        self.bytes = 0

    def skip(self, error: errors_pb2.Error | None) -> None:
        """Leave the next index empty: with this error, or with none if it was refused earlier."""
        if error is not None:
            index = len(self._results)
            self.errors.append(errors_pb2.IndexedError(index=index, error=error))
        self._results.append(b"")

    def add(self, read: Callable[..., bytes | Deferred], *arguments: Any) -> None:
        """Answer the next index with what `read(*arguments)` returns or raises."""
        try:
            result = read(*arguments)
            if isinstance(result, Deferred):
                self.is_deferred = True
            else:
                self._take_room(len(result))
        except Refusal as refusal:
            self.skip(refusal.to_error())
        except LOCAL_FAILURES:
            raise
        except Exception as defect:
            self._alarms.append(Alarm(self._where, self._revision, defect))
            self.skip(internal_error(self._where))
        else:
            self._results.append(result)

    def joined(self) -> bytes:
        """Return the answers framed, all of which must be there."""
        return join([result for result in self._results if isinstance(result, bytes)])

    def computed(self, compute: Callable[[Deferred], bytes]) -> Answers:
        """Return the answers with `compute` done for the deferred ones."""
        done = Answers(self._where, self._revision, self._alarms)
        refused = {error.index: error.error for error in self.errors}
        for index, result in enumerate(self._results):
            if index in refused:
                done.skip(refused[index])
            elif isinstance(result, Deferred):
                done.add(compute, result)
            else:
                done.add(bytes, result)
        return done

    def _take_room(self, count: int) -> None:
        if self.bytes + count > MESSAGE_BYTES_MAX:
            raise Refusal(
                Reason.REASON_COMMAND_TOO_LARGE,
                f"the answers exceed {MESSAGE_BYTES_MAX} bytes together: ask for less at once",
                limit=MESSAGE_BYTES_MAX,
            )
        if self.bytes + count > self._room_bytes:
            raise Refusal(
                Reason.REASON_OVERLOADED,
                "too many large answers were asked for at the same moment: try again",
            )
        self.bytes += count


def _compute(deferred: Deferred) -> bytes:
    return deferred.compute().SerializeToString(deterministic=True)


@dataclass(frozen=True, slots=True)
class DeferredQuery:
    """A span of reads whose answers need time outside the machine."""

    query_id: int
    answers: Answers

    def run(self) -> pb.QueryOutcome:
        """Compute what is missing; runs in a thread, without the state."""
        return self._outcome(self.answers.computed(_compute))

    def refused(self, refusal: Refusal) -> pb.QueryOutcome:
        """Return the answer that refuses what is missing."""

        def refuse(deferred: Deferred) -> bytes:
            raise refusal

        return self._outcome(self.answers.computed(refuse))

    def _outcome(self, done: Answers) -> pb.QueryOutcome:
        return pb.QueryOutcome(query_id=self.query_id, results=done.joined(), errors=done.errors)
