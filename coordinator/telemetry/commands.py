"""One sampled command on its way through the coordinator."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.telemetry.rpc import OK, RpcNames, refused_attributes, refused_status
from viewstamp.telemetry.sampling import TraceContext, new_id_base, numbered_id
from viewstamp.telemetry.spans import AttributeValue, Kind, Span, Status, encoded_each

SERVER_NUMBER: Final = 1  # of the SERVER span among those of a command


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
        *,
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
        return encoded_each(self.spans())

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
