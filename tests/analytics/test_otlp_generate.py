"""The generator writes what our processes would write, the same for the same seed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from testkit.generators.spans import SpanLoad, generate


def spans_of(directory: Path) -> list[dict[str, Any]]:
    """Return the spans of all whole lines, with their service's name as `service`."""
    spans = []
    for path in sorted(directory.rglob("*.jsonl")):
        for line in path.read_text().splitlines():
            try:
                (resource,) = json.loads(line)["resourceSpans"]
            except ValueError:
                continue
            about = {
                a["key"]: a["value"]["stringValue"] for a in resource["resource"]["attributes"]
            }
            for span in resource["scopeSpans"][0]["spans"]:
                spans.append({**span, "service": about["service.name"]})
    return spans


def test_traces_are_whole(tmp_path: Path) -> None:
    """Ids are unique, every parent is present, and a child lies within it if clocks agree."""
    done = generate(tmp_path, SpanLoad(5000, foreign_rate=0.1, error_rate=0.1))
    spans = spans_of(tmp_path)
    by_id = {(span["traceId"], span["spanId"]): span for span in spans}
    assert len(by_id) == len(spans) == done.spans
    for span in spans:
        if span["parentSpanId"]:
            parent = by_id[span["traceId"], span["parentSpanId"]]
            assert int(parent["startTimeUnixNano"]) <= int(span["startTimeUnixNano"])
            assert int(parent["endTimeUnixNano"]) >= int(span["endTimeUnixNano"])
    names = {span["name"] for span in spans}
    assert {"queue", "prepare", "stage streams", "apply streams", "POST"} <= names
    linked = [link for span in spans for link in span.get("links", [])]
    assert linked
    assert all((link["traceId"], link["spanId"]) in by_id for link in linked)


def test_same_load_gives_the_same_bytes(tmp_path: Path) -> None:
    """Seed and load decide every byte; another seed gives others."""
    texts = []
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        generate(tmp_path / name, SpanLoad(1000, seed, duplicate_line_rate=0.2, cut_line_rate=0.2))
        paths = sorted((tmp_path / name).rglob("*.jsonl"))
        texts.append([path.read_bytes() for path in paths])
    assert texts[0] == texts[1] != texts[2]


def test_damage_is_as_counted(tmp_path: Path) -> None:
    """The rotated files have as many repeated and cut lines as the generator returns."""
    load = SpanLoad(
        5000, duplicate_line_rate=0.2, cut_line_rate=0.1, spans_per_line=20, rotate_bytes=100_000
    )
    done = generate(tmp_path, load)
    paths = list(tmp_path.rglob("*.jsonl"))
    spans = spans_of(tmp_path)
    assert len(paths) == done.files > 5
    assert sum(path.read_bytes().count(b"\n") for path in paths) == done.lines
    assert sum(path.stat().st_size for path in paths) == done.size_bytes
    distinct = {(span["traceId"], span["spanId"]) for span in spans}
    assert done.lines_cut > 0
    assert len(distinct) == done.spans - done.spans_cut
    assert len(spans) == len(distinct) + done.spans_repeated > len(distinct)
