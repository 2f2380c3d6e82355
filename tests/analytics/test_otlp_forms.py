"""OTLP in any form gives the spans that its JSON lines give, and nothing is lost in silence."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analytics.otlp import canonical, compressed, files, foreign_files, lines, quality
from analytics.otlp.forms import HEAD_BYTES, MESSAGE_BYTES_MAX, OtlpForm, recognize
from analytics.otlp.json_documents import BrokenDocument, documents
from tests.analytics import otlp_forms
from tests.analytics.otlp_forms import Document


def span(number: int, **fields: Any) -> dict[str, Any]:
    """Return a span with fields of each type."""
    attributes = [
        {"key": "text", "value": {"stringValue": "grün {"}},
        {"key": "whole", "value": {"intValue": str(number - 3)}},
        {"key": "part", "value": {"doubleValue": 0.5}},
        {"key": "truth", "value": {"boolValue": False}},
        {"key": "list", "value": {"arrayValue": {"values": [{"intValue": "7"}]}}},
    ]
    return {
        "traceId": f"{number:032x}",
        "spanId": f"{number:016x}",
        "parentSpanId": "00f067aa0ba902b7",
        "name": f"call {number}",
        "kind": 1 + number % 2,
        "startTimeUnixNano": str(1_700_000_000_123_456_789 + number),
        "endTimeUnixNano": "1700000009123456789",
        "attributes": attributes,
        "events": [{"timeUnixNano": "1700000000123456789", "name": "event"}],
        "links": [{"traceId": f"{number + 1:032x}", "spanId": "00f067aa0ba902b7"}],
        "status": {"code": 2, "message": "no"},
    } | fields


def document_of(*spans: dict[str, Any], service: str = "shop") -> Document:
    """Return a document of spans of a service."""
    about = {"attributes": [{"key": "service.name", "value": {"stringValue": service}}]}
    scopes = [{"scope": {"name": "library", "version": "1"}, "spans": list(spans)}]
    return {"resourceSpans": [{"resource": about, "scopeSpans": scopes}]}


def read(path: Path) -> tuple[list[str], list[tuple[str, str]]]:
    """Return the spans of a file with what is about them, and its problems with their words."""
    found: list[str] = []
    problems: list[tuple[str, str]] = []
    for task in files.plan([path]).tasks:
        for batch in foreign_files.read_all(task):
            for *_, text, problem in lines.rows_of(batch):
                if problem is not None:
                    problems.append((problem, text.decode(errors="replace")))
                    continue
                line = canonical.canonical(documents(text.decode(errors="replace")))
                if line is None:
                    problems.append(("none", text.decode(errors="replace")))
                    continue
                problems += [(part.reason, part.excerpt) for part in line.left_out]
                found += spans_of(json.loads(line.text))
    return sorted(found), problems


def spans_of(document: Document) -> list[str]:
    """Return each span of a document as text, with its resource and its scope."""
    return [
        json.dumps([resource.get("resource"), scope.get("scope"), one], sort_keys=True)
        for resource in document.get("resourceSpans", ())
        for scope in resource["scopeSpans"]
        for one in scope["spans"]
    ]


DOCUMENTS = [document_of(span(1), span(2)), document_of(span(3), service="käse"), document_of()]


@pytest.mark.parametrize("packing", otlp_forms.PACKINGS)
@pytest.mark.parametrize("form", otlp_forms.FORMS)
def test_each_form_gives_the_same_spans(tmp_path: Path, form: str, packing: str) -> None:
    """A file of any form and compression, whatever its name, gives the spans of JSON lines."""
    path = tmp_path / "export"
    path.write_bytes(otlp_forms.PACKINGS[packing](otlp_forms.FORMS[form](DOCUMENTS)))
    expected = sorted(text for document in DOCUMENTS for text in spans_of(document))
    assert read(path) == (expected, [])
    assert files.probe(path, frozenset()).form is not OtlpForm.FOREIGN


VALUES = st.one_of(
    st.builds(lambda text: {"stringValue": text}, st.text(max_size=5)),
    st.builds(lambda number: {"intValue": str(number)}, st.integers(-(2**63), 2**63 - 1)),
    st.builds(lambda truth: {"boolValue": truth}, st.booleans()),
)
SPANS = st.builds(
    lambda number, name, value: span(
        number, name=name or "x", attributes=[{"key": "k", "value": value}]
    ),
    st.integers(1, 2**64 - 2),
    st.text(max_size=8),
    VALUES,
)


@settings(max_examples=60)
@given(
    made=st.lists(
        st.builds(lambda spans: document_of(*spans), st.lists(SPANS, min_size=1, max_size=3)),
        min_size=1,
        max_size=4,
    ),
    form=st.sampled_from(sorted(otlp_forms.FORMS)),
    packing=st.sampled_from(sorted(otlp_forms.PACKINGS)),
)
def test_random_spans_in_random_forms(
    tmp_path_factory: pytest.TempPathFactory, made: Sequence[Document], form: str, packing: str
) -> None:
    """Whatever spans and form are drawn, no span differs, is lost, or comes twice."""
    path = tmp_path_factory.getbasetemp() / "random"
    path.write_bytes(otlp_forms.PACKINGS[packing](otlp_forms.FORMS[form](made)))
    assert read(path) == (sorted(text for one in made for text in spans_of(one)), [])


@settings(max_examples=150)
@given(
    beginning=st.sampled_from([b"", b"{", b"[{", b"\n\x05", b"\0\0\0\x09", b"\x1f\x8b\x08"]),
    rest=st.binary(max_size=60),
    form=st.sampled_from(list(OtlpForm)),
)
def test_hostile_bytes_never_raise(
    tmp_path_factory: pytest.TempPathFactory, beginning: bytes, rest: bytes, form: OtlpForm
) -> None:
    """Any bytes, taken for any form, give rows and no error, each problem under a known reason."""
    path = tmp_path_factory.getbasetemp() / "hostile.jsonl"
    path.write_bytes(beginning + rest)
    found = files.probe(path, frozenset())
    split = files.Split(str(path), found.compression, 0, found.size, form)
    rows = [row for batch in foreign_files.read_all([split]) for row in lines.rows_of(batch)]
    for *_, text, problem in rows:
        canonical.canonical(documents(text.decode(errors="replace")))
        assert problem in (None, lines.SKIPPED_FILE, *quality.REASONS)


@pytest.mark.parametrize("cut", range(1, 4))
@pytest.mark.parametrize("form", ["fixed_protobuf", "varint_protobuf", "fixed_zstd"])
def test_cut_message_is_named(tmp_path: Path, form: str, cut: int) -> None:
    """Of a file that ends within a message, the messages before are read and the cut is named."""
    path = tmp_path / "cut"
    whole = [document_of(span(1)), document_of(span(2))]
    path.write_bytes(otlp_forms.FORMS[form](whole)[:-cut])
    spans, problems = read(path)
    assert spans == spans_of(whole[0])
    assert [reason for reason, _ in problems] == [foreign_files.CUT_MESSAGE]
    assert f"the file ends {cut} bytes" in problems[0][1]


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("attributes", [{"key": "k", "value": {"intValue": "seven"}}], "whole number"),
        ("attributes", {"k": "v"}, "span.attributes has to be an array"),
        ("attributes", [{"key": "k", "value": {"boolValue": 3}}], "true or false"),
        ("events", [7], "has to be an object"),
        ("name", {"first": "call"}, "span.name has to be text"),
        ("status", "OK", "span.status has to be an object"),
    ],
)
def test_mistyped_span_is_left_out_alone(field: str, value: Any, words: str) -> None:
    """A value of a wrong type leaves its span out, says why, and keeps the others of its line."""
    good = span(1)
    line = canonical.canonical([document_of(good, span(2, **{field: value}), span(3))])
    assert line is not None
    assert spans_of(json.loads(line.text)) == spans_of(document_of(good, span(3)))
    (part,) = line.left_out
    assert part.reason == canonical.MISTYPED_SPAN
    assert words in part.excerpt
    assert f"spanId={2:016x}" in part.excerpt


def test_signals_beside_spans_are_named() -> None:
    """Metrics in a document of spans are named, and its spans are read."""
    line = canonical.canonical([document_of(span(1)) | {"resourceMetrics": []}])
    assert line is not None
    assert [part.reason for part in line.left_out] == [canonical.BESIDE_SPANS]
    assert len(spans_of(json.loads(line.text))) == 1


DEEP: dict[str, Any] = {"intValue": "1"}
for _ in range(300):
    DEEP = {"arrayValue": {"values": [DEEP]}}
# Documents whose one span, or what is about it, is made to end the run.
RUDE: dict[str, tuple[Document, str]] = {
    "deep span": (document_of(span(1, attributes=[{"key": "k", "value": DEEP}])), "too deeply"),
    "deep resource": (
        {
            "resourceSpans": [
                {
                    "resource": {"attributes": [{"key": "k", "value": DEEP}]},
                    "scopeSpans": [{"spans": [span(1)]}],
                }
            ]
        },
        "resource has values that are nested too deeply",
    ),
    "a name in two spellings": (document_of(span(1, scopeSpans=1, scope_spans=2)), "an array"),
}


@pytest.mark.parametrize("case", RUDE)
def test_no_span_ends_a_run(case: str) -> None:
    """What cannot be read of a span is a reason, with its words, and never an error."""
    document, words = RUDE[case]
    line = canonical.canonical(documents(json.dumps(document)))
    assert line is not None
    assert spans_of(json.loads(line.text)) == []
    (part,) = line.left_out
    assert part.reason == canonical.MISTYPED_SPAN
    assert words in part.excerpt
    assert f"spanId={1:016x}" in part.excerpt


def test_half_a_character_is_no_error() -> None:
    """Text with half of a pair of surrogates, as JSON may escape it, is kept as it is."""
    line = canonical.canonical([document_of(span(1, name="\ud800"), service="\udc00")])
    assert line is not None
    assert line.left_out == ()
    assert spans_of(json.loads(line.text)) == spans_of(
        document_of(span(1, name="\ud800"), service="\udc00")
    )


def test_documents_behind_a_broken_one_are_read() -> None:
    """Text that is no JSON is named whole, and documents on the lines behind it are read."""
    found = list(documents('{"a":1}\n{"b":\n{"c":3}'))
    assert found == [{"a": 1}, BrokenDocument('{"b":\n'), {"c": 3}]


def test_what_is_no_otlp_is_skipped_and_named(tmp_path: Path) -> None:
    """Files of something else, empty ones and pipes are not read: each is named with its reason."""
    (tmp_path / "traces.json").write_bytes(otlp_forms.lines(DOCUMENTS))
    (tmp_path / "notes.txt").write_text("not OTLP")
    (tmp_path / "settings.json").write_text('{"name": "value"}')
    (tmp_path / "empty").touch()
    (tmp_path / "traces.jsonl.part").write_bytes(otlp_forms.lines(DOCUMENTS))
    os.mkfifo(tmp_path / "pipe")
    spans, problems = read(tmp_path)
    assert len(spans) == 3
    assert {reason for reason, _ in problems} == {lines.SKIPPED_FILE}
    words = ["it holds no OTLP", "it holds no OTLP", "it is a pipe", "it is empty", "its name"]
    found = sorted(text.removeprefix("it is skipped: ") for _, text in problems)
    assert [text[: len(word)] for text, word in zip(found, words, strict=True)] == words


def test_named_pipe_is_an_error_and_not_a_wait(tmp_path: Path) -> None:
    """A pipe that the request names is refused at once, with a sentence."""
    os.mkfifo(tmp_path / "traces.jsonl")
    with pytest.raises(files.NoInputError, match=files.NO_FILE):
        files.plan([tmp_path / "traces.jsonl"])


def test_document_that_is_too_large_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A document past the limit is not read into memory: it is named, with a way out."""
    monkeypatch.setattr(foreign_files, "MESSAGE_BYTES_MAX", 100)
    path = tmp_path / "large"
    path.write_bytes(otlp_forms.FORMS["pretty"](DOCUMENTS))
    spans, problems = read(path)
    assert spans == []
    assert [reason for reason, _ in problems] == [foreign_files.TOO_LARGE]
    assert "JSON lines" in problems[0][1]


def test_bomb_is_not_decompressed() -> None:
    """A message that becomes larger than any that is read raises, and does not fill memory."""
    with pytest.raises(compressed.BombError, match="decompress it yourself"):
        compressed.inflated(gzip.compress(bytes(MESSAGE_BYTES_MAX + 1)))


@pytest.mark.parametrize("size", [HEAD_BYTES - 1, HEAD_BYTES, HEAD_BYTES + 1])
def test_long_protobuf_is_known_by_its_head(size: int) -> None:
    """A message longer than what is looked at is still known to be protobuf."""
    message = otlp_forms.protobuf(document_of(span(1, name="n" * size)))
    assert recognize(message[:HEAD_BYTES], is_whole=False) is OtlpForm.MESSAGE
    assert recognize(otlp_forms.fixed(message)[:HEAD_BYTES], is_whole=False) is OtlpForm.FIXED
