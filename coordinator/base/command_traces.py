"""Sampled commands on their way through the coordinator."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Final, NamedTuple

from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.limits import PREPARE_COMMANDS_MAX
from viewstamp.telemetry import otlp
from viewstamp.telemetry.rpc import OK, OUTCOME_OK, RpcNames, refused_attributes, refused_status
from viewstamp.telemetry.sampling import TraceContext, new_id_base, numbered_id
from viewstamp.telemetry.spans import AttributeValue, SpanOutcome, SpanRole

SERVER_NUMBER: Final = 1  # of the SERVER span among those of a call
# Numbers of a call's SERVER span and its steps differ in the last digit of an id alone.
_CALL_ID_BITS: Final = 4
# Above the numbers of all calls of a prepare.
STEPS_NUMBERED_MAX: Final = PREPARE_COMMANDS_MAX << _CALL_ID_BITS
# What is put into the text of spans that calls in a row have alike.
TRACE_ID, PARENT_ID, IDS, REVISION = otlp.COLUMNS
# What follows the names of a method where one command went well, as OTLP JSON.
_PLACE_KEYS: Final = ("viewstamp.op", "viewstamp.revision")
_SERVER_END: Final = (
    f",{otlp.integers_of(*_PLACE_KEYS)},{OUTCOME_OK},{otlp.integers_of('viewstamp.user_id')}]"
)
NO_REFUSALS: Final[Mapping[int, Reason.ValueType]] = MappingProxyType({})
_SERVER_ID: Final = f"{IDS}{SERVER_NUMBER:x}"


class CommandTrace:
    """The SERVER span of a sampled call, and what its children begin with; or of calls in a row.

    `index` and `count` are its commands among those of its request, `offset` is the place of the
    first of them in the prepare; that one is the `span_index`-th of the request's `span`. Times are
    nanoseconds since 1970, 0 for what has not happened. Calls that are sampled together share all
    of it: the further ones of `trace_ids` are calls of one command each, and follow without a gap.
    Ids of spans here are numbers on top of `id_base`: text is made of them where spans are written.
    """

    __slots__ = (
        "trace_ids",
        "parent_ids",
        "id_base",
        "names",
        "user_id",
        "index",
        "count",
        "span",
        "span_index",
        "offset",
        "is_read",
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
        self.trace_ids = [trace_id]
        self.parent_ids = [parent_id]
        self.id_base = new_id_base()
        self.names = names
        self.user_id = user_id
        self.index = index
        self.count = count
        self.span = span
        self.span_index = span_index
        self.offset = 0
        self.is_read = False  # all reads of a request have one revision, commands one each
        self.started_ns = started_ns
        self.queued_ns = 0

    @property
    def command_count(self) -> int:
        """How many commands all of its calls have."""
        return self.count + len(self.trace_ids) - 1

    @property
    def calls(self) -> range:
        """All of its calls."""
        return range(len(self.trace_ids))

    @property
    def trace_id(self) -> str:
        """The trace of the first call."""
        return self.trace_ids[0]

    @property
    def parent_id(self) -> str:
        """The caller's span of the first call."""
        return self.parent_ids[0]

    def trace_parent(self) -> str:
        """Return the `traceparent` of the SERVER span of the first call."""
        return self.trace_parents(range(1), SERVER_NUMBER)[0]

    def trace_parents(self, calls: range, number: int) -> list[str]:
        """Return a `traceparent` for each of these calls, from the `number`-th span on."""
        first = self.id_base + number
        trace_ids = self.trace_ids[calls.start : calls.stop]
        return [f"00-{trace_id}-{id_:016x}-01" for id_, trace_id in enumerate(trace_ids, first)]

    def server(self, call: int) -> TraceContext:
        """Return the SERVER span of a call."""
        number = (call << _CALL_ID_BITS) + SERVER_NUMBER
        return TraceContext(self.trace_ids[call], numbered_id(self.id_base, number))

    def ids(self, calls: range) -> list[str]:
        """Return the ids of SERVER spans and steps of these calls, but for the last digit.

        It is the number of a span among those of its call.
        """
        first = (self.id_base >> _CALL_ID_BITS) + calls.start
        return [f"{id_:015x}" for id_ in range(first, first + len(calls))]

    def numbered_ids(self, number: int, count: int) -> list[str]:
        """Return `count` ids, beginning with that of the `number`-th span."""
        first = self.id_base + number
        return [f"{id_:016x}" for id_ in range(first, first + count)]


class Ended(NamedTuple):
    """Notes of calls that are over: their SERVER spans.

    `op` is 0 for what has no place in the log, `outcome` the reason of a refusal, or a text where
    there is none. `refused` of `trace.count` commands were, where the call has several; where there
    are several calls, `refusals` has the reasons of those that were, by their place among them.
    """

    trace: CommandTrace
    ended_ns: int
    op: int = 0
    revision: int = 0
    refused: int = 0
    outcome: Reason.ValueType | str = OK
    refusals: Mapping[int, Reason.ValueType] = NO_REFUSALS

    @property
    def span_count(self) -> int:
        """One for each call."""
        return len(self.trace.trace_ids)

    def encoded(self) -> Iterable[str]:
        """Return them as OTLP JSON."""
        trace = self.trace
        is_plain = self.outcome is OK and self.op and trace.count == 1 and not self.refusals
        if not is_plain or trace.user_id is None:
            return [self._encoded(call) for call in trace.calls]
        attributes = trace.names.encoded + _SERVER_END % (self.op, REVISION, trace.user_id)
        parent_id = PARENT_ID if trace.parent_id else ""
        head = otlp.shared(TRACE_ID, parent_id, SpanRole.SERVER, attributes)
        text = trace.names.pattern % (head, _SERVER_ID, trace.started_ns, self.ended_ns)
        calls = trace.calls
        revisions = [str(self.revision + call) for call in self._steps()]
        columns = trace.trace_ids, trace.parent_ids, trace.ids(calls), revisions
        return otlp.rows_of(text, *columns)

    def _steps(self) -> Sequence[int]:
        """Return by how much the revision of each call is above that of the first."""
        calls = self.trace.calls
        return [0] * len(calls) if self.trace.is_read else calls

    def _encoded(self, call: int) -> str:
        """Return the span of a single call, which may have been refused."""
        trace = self.trace
        outcome = self.refusals.get(call, self.outcome)
        return otlp.span_of(
            trace.names.span_name,
            SpanRole.SERVER,
            trace.server(call),
            trace.parent_ids[call],
            trace.started_ns,
            self.ended_ns,
            self._attributes(call, outcome),
            status=SpanOutcome.UNSET if isinstance(outcome, str) else refused_status(outcome),
        )

    def _attributes(
        self, call: int, outcome: Reason.ValueType | str
    ) -> Mapping[str, AttributeValue]:
        trace = self.trace
        attributes: dict[str, AttributeValue] = dict(trace.names.attributes)
        if self.op:
            attributes["viewstamp.op"] = self.op
            attributes["viewstamp.revision"] = self.revision + self._steps()[call]
        if isinstance(outcome, str):
            attributes["viewstamp.outcome"] = outcome
            if self.op and trace.count > 1:
                attributes["viewstamp.commands"] = trace.count
                attributes["viewstamp.refused"] = self.refused
        else:
            attributes |= refused_attributes(outcome)
        if trace.user_id is not None:
            attributes["viewstamp.user_id"] = trace.user_id
        return attributes
