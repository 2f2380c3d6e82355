"""Spans to record, and a reader of what was written."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from viewstamp.telemetry.otlp import Lines
from viewstamp.telemetry.sampling import TraceContext, new_root
from viewstamp.telemetry.spans import Attributes, Notes, SpanRole, TraceSpan, encoded_each, texts_of


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


class Kept:
    """Keeps spans, which must be as many as their notes say and the same when made again."""

    def __init__(self) -> None:
        """Keep none yet."""
        self.spans: list[TraceSpan] = []

    def put(self, notes: Notes) -> None:
        """Keep the spans of notes."""
        made = list(notes.spans())
        assert made == list(notes.spans()) and len(made) == notes.span_count
        assert len({span.context.span_id for span in made}) == len(made)
        assert {tuple(map(len, span.context)) for span in made} <= {(32, 16)}
        encoded = json.loads(f"[{','.join(notes.encoded())}]")
        assert encoded == [json.loads(text) for text in encoded_each(made)]
        self.spans += made


class Told(NamedTuple):
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


def read_spans(directory: Path) -> list[Told]:
    """Return all spans below a directory, each line parsed as JSON."""
    return [
        span
        for path in sorted(directory.glob("**/traces*.jsonl"))
        for line in path.read_text().splitlines()
        for span in _spans_in(json.loads(line))
    ]


def _spans_in(line: dict[str, Any]) -> Iterator[Told]:
    for resource_spans in line["resourceSpans"]:
        resource = plain(resource_spans["resource"]["attributes"])
        for scope_spans in resource_spans["scopeSpans"]:
            for span in scope_spans["spans"]:
                yield Told(
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
