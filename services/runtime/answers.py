"""Answers collected one by one, some of them deferred: of reads and of resolved items."""

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
from viewstamp.limits import MESSAGE_BYTES_MAX, READ_RETRY_DELAY_MS, READ_TIME_MAX_MS


class Answers:
    """The answers of one span in index order, with sparse errors.

    A Refusal becomes its error, a defect INTERNAL with an alarm; failures of the process pass
    through. Together the answers fit one message; those beyond it are refused. `bytes` is their
    size so far.
    """

    __slots__ = (
        "errors",
        "is_deferred",
        "bytes",
        "_where",
        "_revision",
        "_alarms",
        "_results",
    )

    def __init__(self, where: str, revision: int, alarms: list[Alarm]) -> None:
        """Collect for the method `where`, at `revision`; defects are appended to `alarms`."""
        self.errors: list[errors_pb2.IndexedError] = []
        self.is_deferred = False
        self._where = where
        self._revision = revision
        self._alarms = alarms
        self._results: list[bytes | Deferred] = []
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
            self._found(defect)
        else:
            self._results.append(result)

    def costly(self) -> Deferred | None:
        """Return the first deferred answer that belongs to a share."""
        deferred = (result for result in self._results if isinstance(result, Deferred))
        return next((result for result in deferred if result.share is not None), None)

    def _found(self, defect: Exception) -> None:
        self._alarms.append(Alarm(self._where, self._revision, defect))
        self.skip(internal_error(self._where))

    def joined(self) -> bytes:
        """Return the framed answers, all of which must be there."""
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
            raise _too_much()
        self.bytes += count


class ReadAnswers(Answers):
    """The answers to reads, which stop at their share: beyond it no handler runs.

    Refusals count, too. The share leaves room for refusing all remaining requests of a read.
    """

    __slots__ = ("_room_bytes", "_is_gone", "_over")

    def __init__(
        self,
        where: str,
        revision: int,
        alarms: list[Alarm],
        room_bytes: int,
        is_gone: Callable[[], bool],
    ) -> None:
        """Collect up to `room_bytes`, and until the time of the read `is_gone`."""
        super().__init__(where, revision, alarms)
        self._room_bytes = room_bytes
        self._is_gone = is_gone
        self._over: errors_pb2.Error | None = None  # what those past the share are refused with

    def skip(self, error: errors_pb2.Error | None) -> None:
        """Leave the next index empty, as any answers do; the error takes room."""
        super().skip(error)
        if error is not None:
            self.bytes += error.ByteSize()
            if self.bytes > self._room_bytes and self._over is None:
                self._over = _too_much().to_error()

    def add(self, read: Callable[..., bytes | Deferred], *arguments: Any) -> None:
        """Answer the next index, unless the share of the read is used up.

        A read changes nothing, so running out of memory or stack in one is a defect like any other.
        defect like another.
        """
        if self._over is None and self._results and self._is_gone():
            self._over = _took_long().to_error()
        if self._over is not None:
            super().skip(self._over)
            return
        try:
            super().add(read, *arguments)
        except (MemoryError, RecursionError) as defect:
            self._found(defect)

    def _take_room(self, count: int) -> None:
        if self.bytes + count > self._room_bytes:
            self._over = _too_much().to_error()
            raise _too_much()
        self.bytes += count


def _too_much() -> Refusal:
    return Refusal.of(Reason.REASON_COMMAND_TOO_LARGE, "answers", limit=MESSAGE_BYTES_MAX)


def _took_long() -> Refusal:
    return Refusal.of(
        Reason.REASON_OVERLOADED,
        "reads",
        limit_ms=READ_TIME_MAX_MS,
        retry_delay_ms=READ_RETRY_DELAY_MS,
    )


def _compute(deferred: Deferred) -> bytes:
    return deferred.compute().SerializeToString(deterministic=True)


@dataclass(frozen=True, slots=True)
class DeferredQuery:
    """A span of reads whose answers need time outside the machine."""

    query_id: int
    answers: Answers

    @property
    def costly(self) -> Deferred | None:
        """Return the first costly read, to whose share the span belongs."""
        return self.answers.costly()

    def run(self) -> pb.QueryOutcome:
        """Compute the missing answers; runs in a thread, without the state."""
        return self._outcome(self.answers.computed(_compute))

    def refused(self, refusal: Refusal) -> pb.QueryOutcome:
        """Return the answer that refuses the missing ones."""

        def refuse(deferred: Deferred) -> bytes:
            raise refusal

        return self._outcome(self.answers.computed(refuse))

    def _outcome(self, done: Answers) -> pb.QueryOutcome:
        return pb.QueryOutcome(query_id=self.query_id, results=done.joined(), errors=done.errors)
