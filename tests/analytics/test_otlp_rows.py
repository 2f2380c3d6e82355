"""OTLP lines of any producer become typed rows; the row of an unusable one says why."""

from __future__ import annotations

import json
from datetime import date
from typing import TYPE_CHECKING, Any

from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from analytics.otlp import flatten as flatten_module
from analytics.otlp import lines, staging
from analytics.otlp.flatten import flatten
from analytics.schema import UNKNOWN_SERVICE

if TYPE_CHECKING:
    from pyspark.sql import Row, SparkSession

# What Linux lets the name of a folder have.
FOLDER_BYTES_MAX = 255
SPAN = {
    "traceId": "0AF7651916CD43DD8448EB211C80319C",
    "spanId": "B7AD6B7169203331",
    "name": "GET /",
    "startTimeUnixNano": "1700000000123456789",
    "endTimeUnixNano": "1700000000123556789",
}


def line_of(span: dict[str, Any], **resource: str) -> str:
    """Return a line of one span, whose resource has these attributes."""
    about = [{"key": k, "value": {"stringValue": v}} for k, v in resource.items()]
    scoped = {"scope": {"name": "library", "version": "2.1"}, "spans": [span]}
    whole = {"resource": {"attributes": about}, "scopeSpans": [scoped], "schemaUrl": "ignored"}
    return json.dumps({"resourceSpans": [whole]})


def rows(spark: SparkSession, texts: list[str], late_before_us: int | None = None) -> list[Row]:
    """Return the rows of some lines, in the order of the lines."""
    numbered = [("a.jsonl", 0, number, text, None) for number, text in enumerate(texts)]
    flat = flatten(spark.createDataFrame(numbered, lines.COLUMNS), late_before_us)
    return sorted(flat.collect(), key=lambda row: row.line)


def test_every_field_is_typed(spark: SparkSession) -> None:
    """Ids, times, enums, scope, events, links and our own attributes land in their columns."""
    span = {
        **SPAN,
        "parentSpanId": "00F067AA0BA902B7",
        "traceState": "a=b",
        "flags": 4294967295,
        "kind": 3,
        "status": {"code": 2, "message": "no answer"},
        "droppedAttributesCount": 1,
        "unknownField": {"deep": [1, {"er": None}]},
        "attributes": [
            {"key": "rpc.service", "value": {"stringValue": "StreamsService"}},
            {"key": "rpc.method", "value": {"stringValue": "CreateTopic"}},
            {"key": "viewstamp.op", "value": {"intValue": "9007199254740993"}},
            {"key": "viewstamp.revision", "value": {"intValue": 7}},
            {"key": "viewstamp.generation", "value": {"stringValue": "none"}},
            {"key": "viewstamp.stage", "value": {"stringValue": "streams"}},
        ],
        "events": [{"timeUnixNano": "5999", "name": "e", "attributes": [{"key": "k"}]}],
        "links": [{"traceId": "AB" * 16, "spanId": "CD" * 8, "flags": 1}],
    }
    names = {"service.name": "shop", "service.instance.id": "i", "viewstamp.replica_id": "2"}
    (row,) = rows(spark, [line_of(span, **names)])
    got = row.asDict(recursive=True)
    expected = {
        "trace_id": "0af7651916cd43dd8448eb211c80319c",
        "span_id": "b7ad6b7169203331",
        "parent_span_id": "00f067aa0ba902b7",
        "service": "shop",
        "instance": "i",
        "replica_id": 2,
        "kind": "CLIENT",
        "start_us": 1700000000123456,
        "end_us": 1700000000123556,
        "duration_us": 100.0,
        "date": date(2023, 11, 14),
        "status": "ERROR",
        "status_message": "no answer",
        "rpc": "StreamsService/CreateTopic",
        # Beyond what a double can hold.
        "op": 9007199254740993,
        "revision": 7,
        "generation": None,
        "stage": "streams",
        "scope": "library",
        "scope_version": "2.1",
        "trace_state": "a=b",
        "flags": 4294967295,
        "events": [{"time_us": 5, "name": "e", "attributes": {"k": None}}],
        "problem": None,
        "is_first": True,
    }
    assert {name: got[name] for name in expected} == expected
    (link,) = got["links"]
    assert (link["trace_id"], link["span_id"], link["flags"]) == ("ab" * 16, "cd" * 8, 1)


# A producer's span, and the row that it becomes. One Spark job reads all of them.
READINGS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    # The fields that OTLP requires, and no others, give a whole row.
    (
        {},
        {
            "service": UNKNOWN_SERVICE,
            "kind": "UNSPECIFIED",
            "status": "UNSET",
            "rpc": "GET /",
            "stage": None,
            "attributes": {},
            "events": [],
            "links": [],
            "parent_span_id": None,
        },
    ),
    ({"kind": 2, "status": {"code": 1}}, {"kind": "SERVER", "status": "OK"}),
    ({"kind": "2", "status": {"code": "1"}}, {"kind": "SERVER", "status": "OK"}),
    (
        {"kind": "SPAN_KIND_SERVER", "status": {"code": "STATUS_CODE_OK"}},
        {"kind": "SERVER", "status": "OK"},
    ),
    ({"kind": 99, "status": {}}, {"kind": "UNSPECIFIED", "status": "UNSET"}),
    ({"name": "queue"}, {"stage": "queue"}),
    ({"name": "stage users"}, {"stage": "users"}),
    ({"name": "apply streams"}, {"stage": "streams"}),
    ({"name": "cut"}, {"stage": None}),
    ({"parentSpanId": "0" * 16}, {"parent_span_id": None}),
    # A negative duration counts as 0, and its times stay for the check.
    (
        {"endTimeUnixNano": "1700000000000000000"},
        {"duration_us": 0.0, "end_us": 1_700_000_000_000_000},
    ),
]


def test_fields_are_read_as_all_write_them(spark: SparkSession) -> None:
    """Bare spans, enums by number and by name, stages by name and odd times are read as meant."""
    found = rows(spark, [line_of({**SPAN, **written}) for written, _ in READINGS])
    got = [{name: row[name] for name in READINGS[row.line][1]} for row in found]
    assert got == [meant for _, meant in READINGS]
    assert {row.problem for row in found} == {None}


TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=5)
SCALARS = st.one_of(
    TEXTS.map(lambda text: ({"stringValue": text}, text)),
    st.booleans().map(lambda flag: ({"boolValue": flag}, flag)),
    st.integers(-(2**63), 2**63 - 1).map(lambda number: ({"intValue": str(number)}, number)),
    st.integers(-9, 9).map(lambda number: ({"intValue": number}, number)),
    st.sampled_from([0.5, -1.25, 3.0]).map(lambda number: ({"doubleValue": number}, number)),
    st.sampled_from(["NaN", "Infinity"]).map(lambda text: ({"doubleValue": text}, text)),
    st.sampled_from(["", "AAE=", "//79"]).map(lambda text: ({"bytesValue": text}, text)),
    st.just(({}, None)),
)


def _nested(depth: int) -> st.SearchStrategy[tuple[dict[str, Any], Any]]:
    """Return pairs of a value in OTLP and what it means, nested so deep."""
    if depth == 0:
        return SCALARS
    inner = _nested(depth - 1)
    arrays = st.lists(inner, max_size=3).map(
        lambda items: (
            {"arrayValue": {"values": [otlp for otlp, _ in items]}},
            [meant for _, meant in items],
        )
    )
    maps = st.dictionaries(TEXTS, inner, max_size=3).map(
        lambda pairs: (
            {"kvlistValue": {"values": [{"key": k, "value": v[0]} for k, v in pairs.items()]}},
            {key: meant for key, (_, meant) in pairs.items()},
        )
    )
    return st.one_of(SCALARS, arrays, maps)


def test_every_kind_of_value_is_read(spark: SparkSession) -> None:
    """Scalars are read as their text, arrays and maps as the JSON that they mean."""

    # Each example has many values, because a Spark job costs more than they do; so does each
    # shrinking.
    @settings(max_examples=2, phases=[Phase.explicit, Phase.generate])
    @given(st.lists(_nested(2), min_size=30, max_size=60))
    def check(values: list[tuple[dict[str, Any], Any]]) -> None:
        pairs = [{"key": str(i), "value": otlp} for i, (otlp, _) in enumerate(values)]
        (row,) = rows(spark, [line_of({**SPAN, "attributes": pairs})])
        for number, (otlp, meant) in enumerate(values):
            text = row.attributes[str(number)]
            if isinstance(meant, list | dict):
                assert json.loads(text) == meant, (otlp, text)
            else:
                plain = json.dumps(meant) if isinstance(meant, bool | int | float) else meant
                assert text == plain, (otlp, text)

    check()


def test_deepest_values_stay_otlp(spark: SparkSession) -> None:
    """A value that is nested too deeply to be parsed is kept as the producer wrote it."""
    value: dict[str, Any] = {"stringValue": "x"}
    for _ in range(4):
        value = {"arrayValue": {"values": [value]}}
    (row,) = rows(spark, [line_of({**SPAN, "attributes": [{"key": "a", "value": value}]})])
    kept = {"values": [{"arrayValue": {"values": [{"stringValue": "x"}]}}]}
    assert json.loads(row.attributes["a"]) == [[kept]]


PROBLEMS: list[tuple[str, str]] = [
    ("", "blank"),
    ("  \r\n", "blank"),
    ('{"resourceMetrics":[{"scopeMetrics":[]}]}', "metrics"),
    ('{"resourceLogs":[{}]}', "logs"),
    ('{"resourceSpans":[]}', "empty"),
    ('{"resourceSpans":[{"resource":{}}]}', "empty"),
    (line_of(SPAN)[:-30], "cut_line"),
    (line_of(SPAN)[:40] + line_of(SPAN), "cut_line"),
    (line_of(SPAN)[50:], "not_json"),
    ("\0\0\0", "not_json"),
    ('{"hello":1}', "not_otlp"),
    ("[1]", "not_json"),
    (line_of(SPAN).replace(" ", "") * 2, "joined_lines"),
    (line_of({**SPAN, "traceId": "0" * 32}), "invalid_id"),
    (line_of({**SPAN, "traceId": "CvdlGRbNQ92ESOshHIAxnA=="}), "invalid_id"),
    (line_of({**SPAN, "spanId": "b7ad6b716920333g"}), "invalid_id"),
    (line_of({k: v for k, v in SPAN.items() if k != "spanId"}), "invalid_id"),
    (line_of({**SPAN, "startTimeUnixNano": "0"}), "invalid_time"),
    (line_of({**SPAN, "endTimeUnixNano": "soon"}), "invalid_time"),
    (line_of({k: v for k, v in SPAN.items() if k != "endTimeUnixNano"}), "invalid_time"),
    (line_of({**SPAN, "startTimeUnixNano": "1600000000000000000"}), "late"),
]


def test_long_names_of_services_fit_a_folder(spark: SparkSession) -> None:
    """A name that a folder could not have is shortened, and names that differ stay apart; others
    are kept."""
    kept = ["a" * flatten_module.SERVICE_BYTES_MAX, "/" * 80, "ü" * 120, "😀" * 60]
    long = ["a" * 241, "a" * 240 + "b", "/" * 81, "/" * 240, "ü" * 121, "😀" * 60_000]
    found = rows(spark, [line_of(SPAN, **{"service.name": name}) for name in (*kept, *long)])
    services = [row.service for row in found]
    assert services[: len(kept)] == kept
    assert len(set(services)) == len(services)
    folders = [f"service={staging.escaped(name)}".encode() for name in services]
    assert max(map(len, folders)) <= FOLDER_BYTES_MAX
    assert [name[:55] for name in services[len(kept) :]] == [name[:55] for name in long]


def test_problems_are_named(spark: SparkSession) -> None:
    """Each line or span that gives no row of `spans` gives a row that says why."""
    found = rows(spark, [text for text, _ in PROBLEMS], late_before_us=1_650_000_000_000_000)
    assert [(PROBLEMS[row.line][0], row.problem) for row in found] == PROBLEMS
    assert all(row.is_first and row.excerpt is not None for row in found)
    assert max(len(row.excerpt) for row in found) <= lines.EXCERPT_BYTES
