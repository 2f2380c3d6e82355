"""Spans to record, and a reader of written spans."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_ON, ParentBased, Sampler

from viewstamp.telemetry import otlp
from viewstamp.telemetry.otlp import Lines
from viewstamp.telemetry.sampling import TraceContext, new_root
from viewstamp.telemetry.spans import Attributes, Notes, SpanOutcome, SpanRole, texts_of


class TraceSpan(NamedTuple):
    """One finished span, which is its own note."""

    name: str
    kind: SpanRole
    context: TraceContext
    parent_id: str
    start_ns: int
    end_ns: int
    attributes: Attributes
    links: Sequence[TraceContext] = ()
    status: SpanOutcome = SpanOutcome.UNSET
    message: str = ""

    @property
    def span_count(self) -> int:
        """Return the count: one."""
        return 1

    def encoded(self) -> Iterable[str]:
        """Return it as OTLP JSON."""
        return (otlp.span_of(*self),)


def made_span(name: str = "a span", context: TraceContext | None = None, **more: Any) -> TraceSpan:
    """Return a span of one microsecond."""
    fields: dict[str, Any] = {
        "parent_id": "",
        "start_ns": 1_000,
        "end_ns": 2_000,
        "attributes": {},
    } | more
    return TraceSpan(name, fields.pop("kind", SpanRole.INTERNAL), context or new_root(), **fields)


def encode_line(resource: Attributes, notes: Iterable[Notes]) -> bytes:
    """Return the spans of notes as one line of OTLP JSON, with its end."""
    return bytes(Lines().line_of(resource, texts_of(notes)))


class SdkSpans:
    """A tracer provider that keeps finished spans in memory."""

    def __init__(self, sampler: Sampler = ALWAYS_ON) -> None:
        """Begin without spans."""
        self._exporter = InMemorySpanExporter()
        self.provider = TracerProvider(ParentBased(sampler), shutdown_on_exit=False)
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.tracer = self.provider.get_tracer("tests")

    @property
    def spans(self) -> list[ReadableSpan]:
        """The finished spans, in the order of their ends."""
        return list(self._exporter.get_finished_spans())


class Kept:
    """Keeps spans, which must be as many as their notes say and the same when made again."""

    def __init__(self) -> None:
        """Begin without spans."""
        self.spans: list[TraceSpan] = []

    def put(self, notes: Notes) -> None:
        """Keep the spans of notes."""
        text = ",".join(notes.encoded())
        assert text == ",".join(notes.encoded())
        made = list(map(read_span, json.loads(f"[{text}]")))
        assert len(made) == notes.span_count
        assert len({span.context.span_id for span in made}) == len(made)
        assert {tuple(map(len, span.context)) for span in made} <= {(32, 16)}
        self.spans += made


def read_span(told: Mapping[str, Any]) -> TraceSpan:
    """Return a span written as OTLP JSON, which must have no unknown field."""
    assert set(told) <= KEYS and told["flags"] == otlp.FLAGS_SAMPLED
    status = told.get("status", {})
    return TraceSpan(
        told["name"],
        SpanRole(told["kind"]),
        TraceContext(told["traceId"], told["spanId"]),
        told.get("parentSpanId", ""),
        int(told["startTimeUnixNano"]),
        int(told["endTimeUnixNano"]),
        plain(told.get("attributes", [])),
        [TraceContext(link["traceId"], link["spanId"]) for link in told.get("links", [])],
        SpanOutcome(status.get("code", 0)),
        status.get("message", ""),
    )


KEYS = frozenset(
    """
    traceId spanId parentSpanId flags name kind startTimeUnixNano endTimeUnixNano attributes links
    status
    """.split()
)


class ToldSpan(NamedTuple):
    """A span as it was read back."""

    service: str
    name: str
    kind: int
    trace_id: str
    span_id: str
    parent_id: str
    start_ns: int
    end_ns: int
    attributes: dict[str, Any]
    links: list[tuple[str, str]]
    status: int


def read_spans(directory: Path) -> list[ToldSpan]:
    """Return all spans below a directory, each line parsed as JSON."""
    return [
        span
        for path in sorted(directory.glob("**/traces*.jsonl"))
        for line in path.read_text().splitlines()
        for span in _spans_in(json.loads(line))
    ]


def _spans_in(line: dict[str, Any]) -> Iterator[ToldSpan]:
    for resource_spans in line["resourceSpans"]:
        resource = plain(resource_spans["resource"]["attributes"])
        for scope_spans in resource_spans["scopeSpans"]:
            for span in scope_spans["spans"]:
                yield ToldSpan(
                    resource["service.name"],
                    span["name"],
                    span["kind"],
                    span["traceId"],
                    span["spanId"],
                    span.get("parentSpanId", ""),
                    int(span["startTimeUnixNano"]),
                    int(span["endTimeUnixNano"]),
                    plain(span.get("attributes", [])),
                    [(link["traceId"], link["spanId"]) for link in span.get("links", [])],
                    span.get("status", {}).get("code", 0),
                )


def plain(attributes: list[dict[str, Any]]) -> dict[str, Any]:
    """Return attributes as values."""
    read = {"stringValue": str, "intValue": int, "doubleValue": float, "boolValue": bool}
    found = {}
    for attribute in attributes:
        ((kind, value),) = attribute["value"].items()
        found[attribute["key"]] = read[kind](value)
    return found
