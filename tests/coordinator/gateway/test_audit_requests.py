"""What the audit log tells of requests, and what it must not tell."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
from google.protobuf import message_factory
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from coordinator.gateway import audit_records
from coordinator.gateway.audit import Audit
from coordinator.gateway.audit_records import KEPT_BYTES_MAX, SPANS_MAX
from coordinator.mux import types as mux_types
from coordinator.mux.replies import ERROR_OVERHEAD_BYTES
from coordinator.replica.batcher import AnsweredSpan, Reply
from coordinator.replica.kept_errors import DECODED_ERROR_BYTES, KeptErrors
from viewstamp.api.cluster.v1 import cluster_service_pb2 as cluster
from viewstamp.api.consumer_groups.v1 import consumer_groups_service_pb2 as consumer_groups
from viewstamp.api.errors.v1 import errors_pb2
from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.api.sessions.v1 import sessions_service_pb2 as sessions
from viewstamp.api.snapshots.v1 import snapshots_service_pb2 as snapshots
from viewstamp.api.streams.v1 import streams_service_pb2 as streams
from viewstamp.api.submit.v1 import submit_service_pb2 as submit
from viewstamp.api.users.v1 import users_service_pb2 as users
from viewstamp.audit import log, requests
from viewstamp.audit.files import read
from viewstamp.audit.log import AuditLog, Record, open_log
from viewstamp.errors import Refusal
from viewstamp.framing import frame
from viewstamp.routing import Method, methods_of_file
from viewstamp.tokens import AccessToken

SECRET = "s3cret"
OPEN = "open"
DEPTH_MAX = 4
SOUND_SECRET = ("password", "secret", "token", "hash")


SERVICES = (cluster, consumer_groups, sessions, snapshots, streams, submit, users)
METHODS = {method.name: method for each in SERVICES for method in methods_of_file(each.DESCRIPTOR)}


class Routes:
    """All methods of this repository."""

    def find(self, code: int) -> Method | None:
        """Return the method of a code."""
        return next((method for method in METHODS.values() if method.code == code), None)

    def named(self, path: str) -> Method | None:
        """Return the method of a path."""
        return next((method for method in METHODS.values() if method.path == path), None)


def told(tmp_path: Path, tell: Callable[[Audit], None]) -> tuple[list[Record], str]:
    """Return what the log holds after a record was written, as records and as text."""
    kept = open_log(tmp_path, 8 * 1024 * 1024)
    routes: Any = Routes()
    authenticator: Any = None
    tell(Audit(kept, routes, authenticator))
    kept.close()
    text = "".join(path.read_text() for path in sorted(tmp_path.rglob("*.jsonl")))
    return list(read(tmp_path)), text


def filled(descriptor: Any, depth: int = 0) -> Message:
    """Return a message with all fields set, secrets and bytes to values that must not be told."""
    message = message_factory.GetMessageClass(descriptor)()
    for field in descriptor.fields:
        if field.message_type is not None and depth >= DEPTH_MAX:
            continue
        is_map = field.message_type is not None and field.message_type.GetOptions().map_entry
        if not is_map:
            fill(message, field, depth)
    return message


def fill(message: Message, field: FieldDescriptor, depth: int) -> None:
    """Set one field, where it is repeated to two values."""
    value: Any
    is_secret = field.GetOptions().debug_redact
    if field.message_type is not None:
        value = filled(field.message_type, depth + 1)
        if field.is_repeated:
            getattr(message, field.name).extend([value, value])
        else:
            getattr(message, field.name).CopyFrom(value)
        return
    if field.type == FieldDescriptor.TYPE_BYTES:
        value = SECRET.encode()
    elif field.type == FieldDescriptor.TYPE_STRING:
        value = SECRET if is_secret else OPEN
    elif field.type == FieldDescriptor.TYPE_ENUM:
        assert field.enum_type is not None
        value = field.enum_type.values[-1].number
    else:
        value = True if field.type == FieldDescriptor.TYPE_BOOL else 1
    if field.is_repeated:
        getattr(message, field.name).extend([value, value])
    elif field.containing_oneof is None or message.WhichOneof(field.containing_oneof.name) is None:
        setattr(message, field.name, value)


def request_of(
    *spans: submit.Span, refused: Reply | Refusal | None = None
) -> Callable[[Audit], None]:
    """Return the function that tells of a request of a stream."""
    request = submit.CommandRequest(number=1, spans=spans)
    answers: Any = [submit.SpanReply() for _ in spans]
    reply = refused or Reply(view=1, op=1, first_revision=9, spans=tuple(answers))
    principal = AccessToken(7, 1, 2**60)
    return lambda audit: audit.request(request, principal, 3, "ipv4:127.0.0.1:1", reply)


def span(name: str, *requests: Message) -> submit.Span:
    """Return a span of a method."""
    items = b"".join(frame(each.SerializeToString()) for each in requests)
    return submit.Span(code=METHODS[name].code, count=len(requests), items=items)


@pytest.mark.parametrize("name", sorted(METHODS))
def test_no_secret_gets_in(tmp_path: Path, name: str) -> None:
    """The audit log tells no secret and no bytes of any method's request, alone or in a
    transaction, in any field, small or too large to be kept."""
    request = filled(METHODS[name].request.DESCRIPTOR)
    encoded = request.SerializeToString()
    transaction = submit.TransactRequest(
        parts=[submit.TransactionPart(code=METHODS[name].code, request=encoded)]
    )
    padding = b"\xfa\x7f" + b"\x88\x27" + b"x" * 5_000  # an unknown field
    padded = METHODS[name].request.FromString(encoded + padding)
    spans = [span(name, request), span("Transact", transaction), span(name, padded)]
    records, text = told(tmp_path, request_of(*spans))
    assert len(records) == 1
    for form in SECRET, SECRET.encode().hex(), "czNjcmV0":
        assert form not in text
    first, second, third = records[0]["methods"]
    assert first["request"] == third["request"]
    assert second["request"] == {"parts": [{"code": METHODS[name].code}]}
    assert second["parts"] == {name: 1}


def sounds_secret(name: str) -> bool:
    """Return whether the field has the name of a secret."""
    return name != "page_token" and any(word in name for word in SOUND_SECRET)


def test_fields_that_sound_secret_are_marked() -> None:
    """The protos mark each field as secret whose name speaks of a secret."""
    seen: set[str] = set()

    def look(descriptor: Any) -> Iterator[FieldDescriptor]:
        if descriptor.full_name in seen:
            return
        seen.add(descriptor.full_name)
        for field in descriptor.fields:
            if field.message_type is not None:
                yield from look(field.message_type)
            elif field.type == FieldDescriptor.TYPE_STRING and sounds_secret(field.name):
                yield field

    found = [each for m in METHODS.values() for each in look(m.request.DESCRIPTOR)]
    found.append(submit.TransactionPart.DESCRIPTOR.fields_by_name["request"])
    assert [each.full_name for each in found if not each.GetOptions().debug_redact] == []


def test_padding_hides_nothing(tmp_path: Path) -> None:
    """Neither further commands nor padding keep the first command from being told."""
    first = streams.CreateStreamRequest(name="mine")
    others = [streams.CreateStreamRequest(name="x" * 200)] * 100
    long = streams.CreateStreamRequest(name="y" * (2 * KEPT_BYTES_MAX))
    records, _ = told(
        tmp_path, request_of(span("CreateStream", first, *others), span("CreateStream", long))
    )
    told_first, told_long = records[0]["methods"]
    assert told_first["request"] == {"name": "mine"}
    assert told_long["request"] == {"name": "y" * requests.TEXT_CHARACTERS_MAX}


def test_spans_past_the_limit_are_summed_up(tmp_path: Path) -> None:
    """For too many spans the log tells methods, counts, refusals and the parts of transactions."""
    error = errors_pb2.Error(reason=Reason.REASON_PERMISSION_DENIED)
    delete = streams.DeleteStreamRequest()
    part = submit.TransactionPart(
        code=METHODS["DeleteStream"].code, request=delete.SerializeToString()
    )
    spans = [span("CreateStream", streams.CreateStreamRequest(name="a"))] * SPANS_MAX
    spans += [span("DeleteStream", delete, delete), span("DeleteStream", delete)]
    spans += [span("Transact", submit.TransactRequest(parts=[part] * n)) for n in (2, 3)]
    answers: Any = [submit.SpanReply() for _ in spans]
    for place in -4, -3:
        answers[place].errors.add(index=0, error=error)
    reply = Reply(view=1, op=1, first_revision=9, spans=tuple(answers))
    (record,), _ = told(tmp_path, request_of(*spans, refused=reply))
    assert len(record["methods"]) == SPANS_MAX
    deleted, transacted = record["omitted"]
    assert (deleted["method"], deleted["count"]) == ("DeleteStream", 3)
    assert deleted["refused"] == {"PERMISSION_DENIED": 2}
    assert (transacted["count"], transacted["parts"]) == (2, {"DeleteStream": 5})
    assert record["outcome"] == "refused in part"


def test_a_request_that_was_denied_before_the_log_is_told(tmp_path: Path) -> None:
    """A request that was denied as a whole is one record; one that will come again is none."""
    sent = span("CreateStream", streams.CreateStreamRequest(name="a"))
    denied = Refusal(Reason.REASON_PERMISSION_DENIED, "no")
    retried = Refusal(Reason.REASON_QUOTA_EXCEEDED, "later")

    def tell(audit: Audit) -> None:
        for refused in (denied, retried):
            request_of(sent, refused=refused)(audit)

    (record,), _ = told(tmp_path, tell)
    assert (record["outcome"], record["reason"]) == ("refused", "PERMISSION_DENIED")
    assert [method["method"] for method in record["methods"]] == ["CreateStream"]


@pytest.mark.parametrize("answered", [0, 1, SPANS_MAX, SPANS_MAX + 1])
def test_a_kept_reply_with_fewer_spans_is_told(tmp_path: Path, answered: int) -> None:
    """A reused number without a fingerprint finds another request's reply: the log tells the
    refusals in it, and of the other spans only that they were sent."""
    error = errors_pb2.Error(reason=Reason.REASON_PERMISSION_DENIED)
    refused: Any = submit.SpanReply(errors=[errors_pb2.IndexedError(index=0, error=error)])
    sent = [span("DeleteStream", streams.DeleteStreamRequest())] * (SPANS_MAX + 2)
    reply = Reply(view=1, op=1, first_revision=9, spans=(refused,) * answered)
    (record,), _ = told(tmp_path, request_of(*sent, refused=reply))
    parts = [*record["methods"], *record["omitted"]]
    assert sum(part["count"] for part in parts) == len(sent)
    assert sum("refused" in part for part in parts) == answered


def test_what_waits_is_bounded_in_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Records keep only the examined part of a request, and a bounded number of bytes in all."""
    monkeypatch.setattr(AuditLog, "run", lambda self: None)
    kept = open_log(tmp_path, 8 * 1024 * 1024)
    routes: Any = Routes()
    audit = Audit(kept, routes, cast(Any, None))
    small = streams.CreateStreamRequest(name="x" * (KEPT_BYTES_MAX - 100))
    tell = request_of(*[span("CreateStream", *[small] * 100)] * 4)
    for _ in range(log.RECORDS_WAITING_MAX):
        tell(audit)
    held = sum(len(items) for waiting in kept.waiting for items in kept_by(waiting[0]))
    assert log.WAITING_BYTES_MAX // 2 < held <= log.WAITING_BYTES_MAX
    assert kept.lost == log.RECORDS_WAITING_MAX - len(kept.waiting) > 0


@pytest.mark.parametrize("of", ["commands", "reads"])
def test_refusals_that_wait_are_bounded_in_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, of: str
) -> None:
    """Refusals that wait for the thread count by their weight."""
    monkeypatch.setattr(AuditLog, "run", lambda self: None)
    monkeypatch.setattr(log, "WAITING_BYTES_MAX", 4 * 1024 * 1024)
    kept = open_log(tmp_path, 8 * 1024 * 1024)
    routes: Any = Routes()
    audit = Audit(kept, routes, cast(Any, None))
    error = errors_pb2.Error(reason=Reason.REASON_PERMISSION_DENIED).SerializeToString()
    encoded = tuple(mux_types.IndexedError(index, error) for index in range(1_000))
    refused = AnsweredSpan(b"", KeptErrors(encoded))
    reply = Reply(view=1, op=1, first_revision=9, spans=(refused,))
    sent = span("DeleteStream", streams.DeleteStreamRequest())
    for _ in range(200):
        if of == "commands":
            request_of(sent, refused=reply)(audit)
        else:
            audit.reads([sent], AccessToken(7, 1, 2**60), "", reply)
    each = len(encoded) * (ERROR_OVERHEAD_BYTES if of == "commands" else DECODED_ERROR_BYTES)
    assert 0 < len(kept.waiting) <= log.WAITING_BYTES_MAX // each


def kept_by(make: Any) -> Iterator[bytes]:
    """Yield all bytes that a record in the making keeps alive."""
    if isinstance(make, bytes):
        yield make
    elif isinstance(make, partial):
        yield from kept_by(make.args)
    elif isinstance(make, tuple | list):
        for each in make:
            yield from kept_by(each)


def test_omitted_spans_are_not_looked_into(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many spans a request has, only as many first commands are read as are told."""
    read_ones: list[bytes] = []

    def told_request(kind: Any, encoded: bytes) -> Record:
        read_ones.append(encoded)
        return {}

    monkeypatch.setattr(audit_records, "told_request", told_request)
    some = span("CreateStream", *[streams.CreateStreamRequest(name="x" * 5_000)] * 2)
    records, _ = told(tmp_path, request_of(*[some] * (SPANS_MAX + 100)))
    assert len(read_ones) == len(records[0]["methods"]) == SPANS_MAX
    assert [each["count"] for each in records[0]["omitted"]] == [200]


def test_one_request_is_told_within_bounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a request with many values a limited number is told."""
    monkeypatch.setattr(requests, "REQUEST_CHARACTERS_MAX", 4 * requests.VALUE_CHARACTERS_MIN)
    names = streams.CreateStreamRequest(name="x" * 100)
    many = filled(users.UpdatePermissionsRequest.DESCRIPTOR)
    (record,), text = told(
        tmp_path, request_of(span("UpdatePermissions", many), span("CreateStream", names))
    )
    assert '"..."' in json.dumps(record["methods"][0]["request"])
    assert record["methods"][1]["request"]["name"] == "x" * 3 * requests.VALUE_CHARACTERS_MIN
    assert len(text) < 1_000
