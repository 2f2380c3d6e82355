"""Drives a machine of one domain with spans and measures each span, for `benchmarks.limits`."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any, Final

from google.protobuf.descriptor import FileDescriptor
from google.protobuf.message import Message

from services.runtime import cost
from services.runtime.domain import Domain
from services.runtime.machine import Machine
from services.runtime.spans import join
from viewstamp import limits, routing
from viewstamp.api.domain.v1 import domain_service_pb2 as pb
from viewstamp.api.domain.v1 import effects_pb2
from viewstamp.framing import unframe

LATEST: Final = (1 << 62) - 1  # a credential revision that nothing outdates
CLOCK_US: Final = 1_700_000_000_000_000
_NS_PER_MS: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of a span: rows charged, bytes of results and refusals, time, refusals."""

    count: int
    rows: int
    answer_bytes: int
    milliseconds: float
    refused: int


class Meter:
    """Counts the rows that all machines of this process charge, once it is installed."""

    def __init__(self) -> None:
        self.rows = 0

    def install(self) -> None:
        """Start to count."""
        charge = cost.Budget.charge

        def counted(budget: cost.Budget, revision: int, rows: int) -> None:
            charge(budget, revision, rows)
            self.rows += rows

        cost.Budget.charge = counted  # type: ignore[method-assign, assignment]


METER: Final = Meter()


class Driver:
    """One machine, its revision, and the methods of its API."""

    def __init__(self, domain: Domain[Any], *files: FileDescriptor) -> None:
        self.machine: Machine[Any] = Machine(domain)
        methods = (method for file in files for method in routing.methods_of_file(file))
        self.methods = {method.name: method for method in methods}
        self.revision = 0
        self.proposals: list[pb.Proposal] = []

    def do(self, request: Message, **how: Any) -> Any:
        """Carry out one command that must succeed, and return its response."""
        method = self._method_of(request)
        outcome = self._apply(self._command(method, [request], **how)).outcomes[0].command
        if outcome.errors:
            raise AssertionError(f"{method.name}: {outcome.errors[0]}")
        return method.response.FromString(unframe(outcome.results)[0])

    def effect(self, **payload: Any) -> None:
        """Give the machine an effect of another stage."""
        self.revision += 1
        encoded = effects_pb2.EffectPayload(**payload).SerializeToString()
        item = pb.EffectItem(revision=self.revision, payload=encoded, timestamp=CLOCK_US)
        self._apply(pb.Item(effect=item))

    def measure(self, requests: list[Message], **how: Any) -> Cost:
        """Return the cost of a span of requests of one method."""
        method = self._method_of(requests[0])
        is_command = method.kind is routing.MethodKind.COMMAND
        item = (self._command if is_command else self._query)(method, requests, **how)
        batch = self._batch(item, is_logged=is_command)
        rows, began_ns = METER.rows, time.perf_counter_ns()
        applied = self.machine.apply(batch)
        outcome: Any = applied.reply.outcomes[0]
        outcome = outcome.command if is_command else outcome.query
        for deferred in applied.deferred:
            outcome = deferred.run()
        taken_ns = time.perf_counter_ns() - began_ns
        if self.machine.alarms:
            raise AssertionError(f"{method.name}: {self.machine.alarms[0].defect!r}")
        size = len(outcome.results) + sum(error.ByteSize() for error in outcome.errors)
        milliseconds = taken_ns / _NS_PER_MS
        return Cost(len(requests), METER.rows - rows, size, milliseconds, len(outcome.errors))

    def _method_of(self, request: Message) -> routing.Method:
        return self.methods[type(request).__name__.removesuffix("Request")]

    def _command(
        self,
        method: routing.Method,
        requests: list[Message],
        *,
        user: int = limits.ROOT_USER_ID,
        session: int = 0,
        context: Message | None = None,
    ) -> pb.Item:
        first = self.revision + 1
        self.revision += len(requests)
        item = pb.CommandItem(
            code=method.code,
            first_revision=first,
            count=len(requests),
            items=join([request.SerializeToString() for request in requests]),
            user_id=user,
            credential_revision=LATEST,
            session_id=session,
            timestamp=CLOCK_US + first,
            contexts=_contexts(context, len(requests)),
        )
        return pb.Item(command=item)

    def _query(
        self,
        method: routing.Method,
        requests: list[Message],
        *,
        user: int = limits.ROOT_USER_ID,
        session: int = 0,
        context: Message | None = None,
    ) -> pb.Item:
        item = pb.QueryItem(
            query_id=1,
            code=method.code,
            count=len(requests),
            items=join([request.SerializeToString() for request in requests]),
            user_id=user,
            credential_revision=LATEST,
            session_id=session,
            contexts=_contexts(context, len(requests)),
        )
        return pb.Item(query=item)

    def _batch(self, item: pb.Item, *, is_logged: bool = True) -> pb.Batch:
        sequence = self.machine.sequence + 1 if is_logged else 0
        return pb.Batch(
            sequence=sequence, op=sequence, feature_level=limits.FEATURE_LEVEL_MAX, items=[item]
        )

    def _apply(self, item: pb.Item) -> pb.BatchReply:
        reply = self.machine.apply(self._batch(item)).reply
        self.proposals.extend(reply.proposals)
        return reply


def _contexts(context: Message | None, count: int) -> bytes:
    return b"" if context is None else join([context.SerializeToString()] * count)
