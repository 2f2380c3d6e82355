"""Lines read by whole columns give the rows that `flatten` gives for each line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from analytics.otlp import columnar, files, foreign_files, ingest, lines, mended_lines
from analytics.otlp.flatten import flatten
from analytics.schema import SPANS
from testkit.generators.spans import SpanLoad, generate
from tests.analytics.test_otlp_rows import PROBLEMS, SPAN, line_of

if TYPE_CHECKING:
    from pyspark.sql import Row, SparkSession

LATE_BEFORE_US = 1_650_000_000_000_000


def pair(key: str, **value: Any) -> dict[str, Any]:
    """Return an attribute."""
    return {"key": key, "value": value}


# Lines that a producer may write and Arrow reads: none of them may be odd.
USUAL: list[dict[str, Any]] = [
    {},
    {"kind": 3, "status": {"code": 2, "message": "no answer"}, "flags": 4294967295},
    {"kind": 99, "status": {"code": -1, "message": ""}, "traceState": "", "name": ""},
    {"parentSpanId": "00F067AA0BA902B7", "traceState": "a=b"},
    {"parentSpanId": "0" * 16},
    {"parentSpanId": "", "attributes": [], "events": [], "links": []},
    {"name": "stage users"},
    {"name": "apply streams", "attributes": [pair("viewstamp.stage", stringValue="other")]},
    {"name": "journal", "attributes": [pair("viewstamp.stage", stringValue="")]},
    {"name": "stage "},
    {"name": 'häufig \u2603 \U0001f600 "quoted" \\ \t'},
    {"endTimeUnixNano": "1700000000000000000"},
    {
        "attributes": [
            pair("s", stringValue="grün"),
            pair("b", boolValue=True),
            pair("f", boolValue=False),
            pair("i", intValue="-9223372036854775808"),
            pair("d", doubleValue=0.25),
            pair("n", doubleValue=-1234.5),
            pair("y", bytesValue="AAE="),
            pair("e", stringValue=""),
        ]
    },
    {
        "attributes": [
            pair("viewstamp.op", intValue="9007199254740993"),
            pair("viewstamp.revision", stringValue="7"),
            pair("viewstamp.replica_id", intValue="-2"),
            pair("viewstamp.generation", stringValue="12"),
        ]
    },
    {"attributes": [pair("rpc.service", stringValue="S"), pair("rpc.method", stringValue="M")]},
    {"attributes": [pair("rpc.method", stringValue="S/M")]},
    {"attributes": [pair("rpc.method", stringValue="M")]},
    {"attributes": [pair(f"k{number}", intValue=str(number)) for number in range(70)]},
    {"events": [{"timeUnixNano": "5999", "name": "e", "attributes": [pair("k", stringValue="v")]}]},
    {"events": [{"name": "e"}, {"timeUnixNano": "1"}]},
    {"links": [{"traceId": "AB" * 16, "spanId": "CD" * 8, "flags": 1, "traceState": ""}]},
    {"links": [{"attributes": [pair("k", boolValue=True)]}, {"traceState": "x"}]},
    {"unknownField": {"deep": [1, {"er": None}]}, "droppedAttributesCount": 1},
    {"startTimeUnixNano": "1600000000000000000", "name": "late"},
]
# Lines that only `flatten` handles.
UNUSUAL: list[dict[str, Any]] = [
    {"kind": "SPAN_KIND_SERVER"},
    {"startTimeUnixNano": 1700000000000000000},
    {"name": 5},
    {"name": "stage a\nb"},
    {"attributes": [pair("i", intValue=7)]},
    {"attributes": [pair("d", doubleValue="NaN")]},
    {"attributes": [pair("d", doubleValue=3.0)]},
    {"attributes": [pair("d", doubleValue=1e-9)]},
    {"attributes": [pair("a", arrayValue={"values": [{"intValue": "1"}]})]},
    {"attributes": [pair("m", kvlistValue={"values": []})]},
    {"attributes": [pair("empty")]},
    {"attributes": [{"key": "none"}]},
    {"attributes": [{"value": {"stringValue": "nobody's"}}]},
    {"attributes": [pair("twice", intValue="1"), pair("twice", intValue="2")]},
    {"attributes": [pair(f"k{n % 40}", intValue=str(n)) for n in range(41)]},
    {"attributes": [pair("viewstamp.op", stringValue="none")]},
    {"attributes": [pair("viewstamp.op", stringValue="1.5")]},
    {"attributes": [None]},
    {"events": [None]},
    {"events": [{"timeUnixNano": "soon"}]},
    {"links": [{"attributes": [pair("k")]}]},
]


def columns_of(row: Row) -> dict[str, Any]:
    """Return the columns of `spans`, and the columns that both ways give for other rows."""
    return row.asDict(recursive=True)


def by_columns(
    spark: SparkSession, batches: list[pa.RecordBatch], late_before_us: int | None
) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the rows that `columnar` makes of lines, sorted, and the text of odd lines."""
    schema, columns = ingest.span_schema()
    made = pa.Table.from_batches(list(columnar.rows(schema, late_before_us, batches)), schema)
    frame = spark.createDataFrame(made, columns)
    found = [row.asDict(recursive=True) for row in frame.collect()]
    odd = [row for row in found if row["date"] is None and row["name"] == columnar.ODD]
    return (
        sorted((row for row in found if row not in odd), key=repr),
        sorted(row["status_message"] for row in odd),
    )


def by_flatten(
    spark: SparkSession, batches: list[pa.RecordBatch], late_before_us: int | None
) -> list[dict[str, Any]]:
    """Return the rows that `flatten` makes of lines, in the layout of `columnar`, sorted."""
    found = []
    for row in flatten(
        spark.createDataFrame(pa.Table.from_batches(batches), lines.COLUMNS), late_before_us
    ).collect():
        kept = row.asDict(recursive=True)
        if row.problem is None:
            found.append({name: kept[name] for name in (*SPANS.column_names(), "is_first")})
            continue
        packed = dict.fromkeys(SPANS.column_names()) | {"is_first": row.is_first}
        found.append(packed | {at: kept[name] for name, at in columnar.PACKED.items()})
    return sorted(found, key=repr)


def batch_of(texts: list[str]) -> list[pa.RecordBatch]:
    """Return lines as they are read, with one without text among them."""
    count = len(texts)
    columns = [
        ["a.jsonl"] * count, [0] * count, list(range(count)), [f"{t}\n" for t in texts],
        [None] * count,
    ]  # fmt: skip
    types = (pa.string(), pa.int64(), pa.int64(), pa.string(), pa.string())
    arrays = [pa.array(column, kind) for column, kind in zip(columns, types, strict=True)]
    return [pa.RecordBatch.from_arrays(arrays, names=list(lines.NAMES))]


@pytest.mark.long
def test_usual_lines_are_what_flatten_says(spark: SparkSession) -> None:
    """A span that Arrow can read gives the same rows, alone on its line or beside other spans."""
    names = {"service.name": "shop", "service.instance.id": "i", "viewstamp.replica_id": "2"}
    texts = [line_of({**SPAN, **written}, **names) for written in USUAL]
    many = json.loads(texts[0])
    many["resourceSpans"][0]["scopeSpans"][0]["spans"] = [{**SPAN, **one} for one in USUAL]
    many["resourceSpans"].append({"resource": {}, "scopeSpans": [{"spans": [SPAN, SPAN]}, {}]})
    batches = batch_of([*texts, json.dumps(many), line_of(SPAN)])
    found, odd = by_columns(spark, batches, LATE_BEFORE_US)
    assert odd == []
    assert found == by_flatten(spark, batches, LATE_BEFORE_US)
    assert sum(row["name"] == "late" for row in found) == 2


@pytest.mark.parametrize("alone", [True, False])
def test_unusual_lines_are_left_alone(spark: SparkSession, alone: bool) -> None:
    """Lines with anything else, and those with problems, are odd; the others are not."""
    texts = [line_of({**SPAN, **written}) for written in UNUSUAL]
    texts += [text for text, problem in PROBLEMS if problem != "late"]
    texts += [
        line_of(SPAN, **{"service.name": "a" * (columnar.SERVICE_BYTES_MAX + 1)}),
        line_of(SPAN).replace("scope", "instrumentationLibrary"),
        line_of(SPAN)[:-3] + ', "instrumentationLibrarySpans": []}]}',
    ]
    usual = [line_of({**SPAN, "name": f"usual {number}"}) for number in range(40)]
    batches = (
        [one for text in (*texts, *usual) for one in batch_of([text])]
        if alone
        else batch_of([*texts, *usual])
    )
    found, odd = by_columns(spark, batches, None)
    assert {f"{text}\n" for text in texts} <= set(odd)
    assert len(found) + len(odd) == len(texts) + len(usual)
    if alone:
        assert len(found) == len(usual)


@pytest.mark.parametrize("is_mended", [True, False])
def test_odd_lines_past_the_bound_are_left_to_flatten(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, is_mended: bool
) -> None:
    """An odd line becomes a usual one, unless its values would take more memory than a message."""
    text = line_of(SPAN).replace("scope", "instrumentationLibrary") + "\n"
    monkeypatch.setattr(mended_lines, "MESSAGE_BYTES_MAX", len(text) - (not is_mended))
    schema, _ = ingest.span_schema()
    (made,) = mended_lines.rows(schema, None, batch_of([text.rstrip()]))
    assert columnar.is_odd(made) is not is_mended
    if not is_mended:
        assert columnar.unpacked(made).column("text").to_pylist() == [text]


@pytest.mark.long
def test_generated_lines_are_what_flatten_says(spark: SparkSession, tmp_path: Path) -> None:
    """Both ways agree on telemetry of ours and of others, with lines that are cut."""
    load = SpanLoad(800, cut_line_rate=0.1, foreign_rate=0.2, error_rate=0.1, spans_per_line=20)
    generate(tmp_path, load)
    (group,) = files.plan([tmp_path]).tasks
    batches = list(foreign_files.read_all(group))
    found, odd = by_columns(spark, batches, None)
    expected = by_flatten(spark, batches, None)
    assert [row for row in found if row["date"]] == [row for row in expected if row["date"]]
    assert len(odd) == sum(row["date"] is None for row in expected) > 0
