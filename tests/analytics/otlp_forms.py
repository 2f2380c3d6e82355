"""The same spans in each form in which OTLP is written, made of nothing but JSON lines."""

from __future__ import annotations

import base64
import gzip
import json
import re
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias

import zstandard
from google.protobuf.json_format import ParseDict
from opentelemetry.proto.trace.v1.trace_pb2 import TracesData

# A document of OTLP JSON, with ids in hexadecimal.
Document: TypeAlias = "dict[str, Any]"
Form: TypeAlias = Callable[[Sequence[Document]], bytes]

IDS: Final = ("traceId", "spanId", "parentSpanId")


def changed(value: Any, change: Callable[[str, Any], tuple[str, Any]]) -> Any:
    """Return a document with each member replaced by what `change` returns."""
    if isinstance(value, list):
        return [changed(one, change) for one in value]
    if not isinstance(value, dict):
        return value
    return dict(change(name, changed(one, change)) for name, one in value.items())


def in_base64(document: Document) -> Document:
    """Return a document with its ids as protobuf's own JSON has them."""

    def change(name: str, value: Any) -> tuple[str, Any]:
        return name, base64.b64encode(bytes.fromhex(value)).decode() if name in IDS else value

    made: Document = changed(document, change)
    return made


def in_snake_case(document: Document) -> Document:
    """Return a document with the names that its protobuf fields have."""
    made: Document = changed(
        document,
        lambda name, value: (re.sub("[A-Z]", lambda found: f"_{found[0].lower()}", name), value),
    )
    return made


def in_legacy_names(document: Document) -> Document:
    """Return a document as the libraries of 2021 wrote it."""
    names = {
        "scopeSpans": "instrumentationLibrarySpans",
        "scope": "instrumentationLibrary",
    }
    made: Document = changed(document, lambda name, value: (names.get(name, name), value))
    return made


def in_other_types(document: Document) -> Document:
    """Return a document with enums as names, and numbers where text is usual."""

    def change(name: str, value: Any) -> tuple[str, Any]:
        if name == "kind":
            return name, ["UNSPECIFIED", "SPAN_KIND_INTERNAL", "SPAN_KIND_SERVER"][value]
        if name == "code":
            return name, ["STATUS_CODE_UNSET", "STATUS_CODE_OK", "STATUS_CODE_ERROR"][value]
        return name, int(value) if name.endswith("UnixNano") or name == "intValue" else value

    made: Document = changed(document, change)
    return made


def protobuf(document: Document) -> bytes:
    """Return a document as a protobuf message."""
    return ParseDict(in_base64(document), TracesData()).SerializeToString()


def varint(number: int) -> bytes:
    """Return a length as protobuf writes it before a message."""
    low, high = number & 0x7F, number >> 7
    return bytes([low | 0x80]) + varint(high) if high else bytes([low])


def fixed(message: bytes) -> bytes:
    """Return a message with its length in four bytes before it."""
    return len(message).to_bytes(4, "big") + message


def lines(documents: Sequence[Document], between: str = "\n") -> bytes:
    """Return documents with something between each two."""
    return between.join(map(json.dumps, documents)).encode()


def each(change: Callable[[Document], Document]) -> Form:
    """Return the form of lines with each document changed."""
    return lambda documents: lines([change(document) for document in documents])


def messages(write: Callable[[Document], bytes]) -> Form:
    """Return the form of messages one after the other."""
    return lambda documents: b"".join(map(write, documents))


def around(name: str) -> Form:
    """Return the form of documents within an object that has only this name."""
    return lambda documents: lines([{name: document} for document in documents])


def batches(documents: Sequence[Document]) -> bytes:
    """Return one document as Tempo writes it: over several lines, its ids in base64."""
    found = [one for document in documents for one in in_base64(document)["resourceSpans"]]
    return json.dumps({"batches": found}, indent=2).encode()


FORMS: Final[dict[str, Form]] = {
    "lines": lines,
    "pretty": lambda documents: "\n".join(json.dumps(d, indent=4) for d in documents).encode(),
    "array": lambda documents: json.dumps(documents).encode(),
    "pretty_array": lambda documents: json.dumps(documents, indent=1).encode(),
    "array_of_lines": lambda documents: b"[\n" + lines(documents, ",\n") + b"\n]\n",
    "nothing_between": lambda documents: lines(documents, ""),
    "comma_between": lambda documents: lines(documents, ", "),
    "tab_between": lambda documents: lines(documents, "\t"),
    "carriage_return_between": lambda documents: lines(documents, "\r"),
    "byte_order_mark": lambda documents: b"\xef\xbb\xbf" + lines(documents),
    "result": around("result"),
    "trace": around("trace"),
    "batches": batches,
    "base64": each(in_base64),
    "snake_case": each(in_snake_case),
    "legacy_names": each(in_legacy_names),
    "other_types": each(in_other_types),
    "bare_protobuf": messages(protobuf),
    "fixed_protobuf": messages(lambda document: fixed(protobuf(document))),
    "fixed_json": messages(lambda document: fixed(json.dumps(document).encode())),
    "fixed_zstd": messages(lambda document: fixed(zstandard.compress(protobuf(document)))),
    "varint_protobuf": messages(
        lambda document: varint(len(protobuf(document))) + protobuf(document)
    ),
}
PACKINGS: Final[dict[str, Callable[[bytes], bytes]]] = {
    "plain": bytes,
    "gzip": gzip.compress,
    "zstd": zstandard.compress,
}
