"""Counts of the calls of one kind of attack, and of their answers."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Final

import grpc
import grpc.aio

from viewstamp.api.errors.v1 import errors_pb2
from viewstamp.api.submit.v1 import submit_service_pb2 as submit_pb2
from viewstamp.errors import reason_name
from viewstamp.status import refusal_of

# No hostile call may get these answers: with them the server blames itself for its caller.
BROKEN_CODES: Final = frozenset({grpc.StatusCode.INTERNAL.name, grpc.StatusCode.UNKNOWN.name})
# Errors that the client's own library reports as INTERNAL when a call is ended.
OWN_ENDS: Final = (
    "Internal error from Core",
    "Channel closed",
    "Socket closed",
    "Cancelling all calls",
    "RST_STREAM",
)
EXAMPLES_MAX: Final = 5
EXAMPLE_CHARACTERS_MAX: Final = 300


@dataclass(slots=True)
class Tally:
    """Counts of one kind. `answers` is by reason, or by gRPC code for an error without one."""

    calls: int = 0
    answers: Counter[str] = field(default_factory=Counter)
    broken: list[str] = field(default_factory=list)

    def sent(self, calls: int = 1) -> None:
        """Count calls that were sent."""
        self.calls += calls

    def answered(self, count: int = 1) -> None:
        """Count calls that succeeded."""
        self.answers["OK"] += count

    def failed(self, error: grpc.aio.AioRpcError) -> None:
        """Count a call, or a stream, that ended with an error."""
        code, text = error.code().name, error.details() or ""
        refusal = refusal_of(error)
        self.answers[code if refusal is None else refusal.name] += 1
        is_own = any(own in text for own in OWN_ENDS)
        if code in BROKEN_CODES and not is_own:
            self._break(f"{code}: {text}")

    def replied(self, reply: submit_pb2.CommandReply | submit_pb2.ReadReply) -> None:
        """Count the calls of an answer on a Submit stream."""
        if reply.HasField("error"):
            self._refused(reply.error)
        for span in reply.spans:
            for refused in span.errors:
                self._refused(refused.error)
        if not reply.HasField("error"):
            self.answers["answered messages"] += 1

    def as_dict(self) -> dict[str, Any]:
        """Return the counts, for a line of JSON."""
        return {"calls": self.calls, "answers": dict(self.answers), "broken": self.broken}

    def _refused(self, error: errors_pb2.Error) -> None:
        self.answers[reason_name(error.reason)] += 1
        if error.reason == errors_pb2.REASON_INTERNAL:
            self._break(f"INTERNAL inside a reply: {error}")

    def _break(self, example: str) -> None:
        self.answers["broken"] += 1
        if len(self.broken) < EXAMPLES_MAX:
            self.broken.append(example[:EXAMPLE_CHARACTERS_MAX])
