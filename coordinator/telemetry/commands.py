"""One sampled command on its way through the coordinator."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.telemetry import otlp
from viewstamp.telemetry.rpc import OK, OUTCOME_OK, RpcNames, refused_attributes, refused_status
from viewstamp.telemetry.sampling import TraceContext, new_id_base, numbered_id
from viewstamp.telemetry.spans import AttributeValue, Kind, Span, Status, encoded_each

SERVER_NUMBER: Final = 1  # of the SERVER span among those of a command
# What follows the names of a method where one command went well, as OTLP JSON.
_PLACE_KEYS: Final = ("viewstamp.op", "viewstamp.revision")
_SERVER_END: Final = (
    f",{otlp.integers_of(*_PLACE_KEYS)},{OUTCOME_OK},{otlp.integers_of('viewstamp.user_id')}]"
)


class CommandTrace:
    """The SERVER span of a sampled call, and what its children begin with.

    `index` and `count` are its commands among those of its request, `offset` is the place of the
    first of them in the prepare; that one is the `span_index`-th of the request's `span`. Times are
    nanoseconds since 1970, 0 for what has not happened. Ids of its spans here are numbers on top of
    `id_base`: text is made of them where spans are written.
    """

    __slots__ = (
        "trace_id",
        "parent_id",
        "id_base",
        "names",
        "user_id",
        "index",
        "count",
        "span",
        "span_index",
        "offset",
        "started_ns",
        "queued_ns",
    )

    def __init__(
        self,
        trace_id: str,
        parent_id: str,
        names: RpcNames,
        started_ns: int,
        user_id: int | None = None,
        index: int = 0,
        count: int = 1,
        span: int = 0,
        span_index: int = 0,
    ) -> None:
        """Begin; `parent_id` is the caller's span or empty.

        `user_id` is None as long as nobody has looked at the token.
        """
        self.trace_id = trace_id
        self.parent_id = parent_id
        self.id_base = new_id_base()
        self.names = names
        self.user_id = user_id
        self.index = index
        self.count = count
        self.span = span
        self.span_index = span_index
        self.offset = 0
        self.started_ns = started_ns
        self.queued_ns = 0

    @property
    def context(self) -> TraceContext:
        """The SERVER span."""
        return self.numbered(SERVER_NUMBER)

    def trace_parent(self, number: int = SERVER_NUMBER) -> str:
        """Return the `traceparent` of the `number`-th of its spans here."""
        return f"00-{self.trace_id}-{self.id_base + number:016x}-01"

    def numbered(self, number: int) -> TraceContext:
        """Return the `number`-th of its spans here."""
        return TraceContext(self.trace_id, numbered_id(self.id_base, number))


class Ended(NamedTuple):
    """Notes of a call that is over: its SERVER span.

    `op` is 0 for what has no place in the log, `outcome` the reason of a refusal, or a text where
    there is none. `refused` of `trace.count` commands were, where it has several.
    """

    trace: CommandTrace
    ended_ns: int
    op: int = 0
    revision: int = 0
    refused: int = 0
    outcome: Reason.ValueType | str = OK

    @property
    def span_count(self) -> int:
        """One."""
        return 1

    def encoded(self) -> Iterable[str]:
        """Return it as OTLP JSON."""
        trace = self.trace
        if self.outcome is not OK or not self.op or trace.count > 1 or trace.user_id is None:
            return encoded_each(self.spans())
        attributes = trace.names.encoded + _SERVER_END % (self.op, self.revision, trace.user_id)
        head = otlp.shared(trace.trace_id, trace.parent_id, Kind.SERVER, attributes)
        span_id = numbered_id(trace.id_base, SERVER_NUMBER)
        return (trace.names.pattern % (head, span_id, trace.started_ns, self.ended_ns),)

    def spans(self) -> Iterable[Span]:
        """Yield the SERVER span."""
        trace, status = self.trace, Status.UNSET
        attributes: dict[str, AttributeValue] = dict(trace.names.attributes)
        if self.op:
            attributes["viewstamp.op"] = self.op
            attributes["viewstamp.revision"] = self.revision
        if isinstance(self.outcome, str):
            attributes["viewstamp.outcome"] = self.outcome
            if self.op and trace.count > 1:
                attributes["viewstamp.commands"] = trace.count
                attributes["viewstamp.refused"] = self.refused
        else:
            attributes |= refused_attributes(self.outcome)
            status = refused_status(self.outcome)
        if trace.user_id is not None:
            attributes["viewstamp.user_id"] = trace.user_id
        yield Span(
            trace.names.span_name,
            Kind.SERVER,
            trace.context,
            trace.parent_id,
            trace.started_ns,
            self.ended_ns,
            attributes,
            status=status,
        )
