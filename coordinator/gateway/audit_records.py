"""Records of the audit log, made by the thread that writes them from what was kept of a request.

Nobody changes what is kept: received messages, and answers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Final, TypeAlias

from coordinator.gateway.normalize import TRANSACT, codes_of_transaction
from coordinator.gateway.peer_address import address_of
from coordinator.gateway.routes import Routes
from coordinator.replica.kept_errors import errors_weight
from viewstamp.api.errors.v1 import errors_pb2
from viewstamp.api.submit.v1 import submit_service_pb2 as submit_pb2
from viewstamp.audit.log import Record
from viewstamp.audit.requests import told_request
from viewstamp.errors import Refusal, reason_name
from viewstamp.framing import FramingError, first_frame, frame
from viewstamp.routing import Method

# How many spans of one request are recorded, each by its first command; the others are summed up.
SPANS_MAX: Final = 16
# Larger payloads are not kept for the thread, but read at once.
KEPT_BYTES_MAX: Final = 4_096
UNKNOWN: Final = "unknown"
# How much of a path that nobody serves is recorded.
PATH_CHARACTERS_MAX: Final = 100

Errors = Sequence[errors_pb2.IndexedError]
Make: TypeAlias = Callable[[], Record]
# Functions that make the parts of the first spans, and the sums of the others.
KeptSpans: TypeAlias = tuple[Sequence[Make], Sequence[Record]]
# When it was decided, in us; its revision, if any; why it was refused as a whole.
Decided: TypeAlias = tuple[int, int | None, Refusal | None]


def record_of(kind: str, at_us: int, user_id: int | None, peer: str) -> Record:
    """Return the beginning of a record; `peer` is as gRPC names it."""
    return {"at": at_us, "kind": kind, "user": user_id, "from": address_of(peer)}


def call_record(kind: str, decided: Decided, user_id: int | None, peer: str, part: Make) -> Record:
    """Return the record of a single call."""
    record = record_of(kind, decided[0], user_id, peer)
    record["methods"] = [part()]
    add_outcome(record, decided)
    return record


def request_record(
    decided: Decided, user_id: int, session_id: int, peer: str, spans: KeptSpans
) -> Record:
    """Return the record of a request of a stream."""
    record = record_of("call", decided[0], user_id, peer)
    record["session"] = session_id
    record |= _told(spans)
    add_outcome(record, decided)
    if _is_refused_in_part(record):
        record["outcome"] = "refused in part"
    return record


def denied_record(at_us: int, user_id: int, peer: str, spans: KeptSpans) -> Record:
    """Return the record of denied reads of a stream."""
    record = record_of("call", at_us, user_id, peer)
    return {**record, **_told(spans), "outcome": "refused in part"}


def add_outcome(record: Record, decided: Decided) -> None:
    """Add the outcome."""
    _, revision, refusal = decided
    if revision is not None:
        record["revision"] = revision
    record["outcome"] = "ok" if refusal is None else "refused"
    if refusal is not None:
        record["reason"] = refusal.name
        record["details"] = dict(refusal.details)


def kept_spans(
    routes: Routes, spans: Sequence[submit_pb2.Span], errors: Sequence[Errors]
) -> tuple[KeptSpans, int]:
    """Return what is kept of spans, and its bytes: parts of the first ones, the others by method.

    `errors` may be empty if nothing was refused. A number without a fingerprint may find the reply
    of another request, which can have fewer errors than spans.
    """
    parts: list[Make] = []
    size = 0
    for index, span in enumerate(spans[:SPANS_MAX]):
        method, items = routes.find(span.code), span.items
        refused = errors[index] if index < len(errors) else ()
        size += errors_weight(refused)
        kept = _kept_items(method, items)
        if kept is None:
            parts.append(partial(_same, _span(routes, method, span.count, items, refused)))
            size += KEPT_BYTES_MAX
        else:
            parts.append(partial(_span, routes, method, span.count, kept, refused))
            size += len(kept)
    omitted = _summed_up(routes, spans[SPANS_MAX:], errors[SPANS_MAX:])
    return (parts, omitted), size


def kept_part(routes: Routes, method: Method, payload: bytes) -> tuple[Make, int]:
    """Return the maker of a single command's or read's part, and the bytes kept for it."""
    if len(payload) <= KEPT_BYTES_MAX:
        return partial(_part_of_payload, routes, method, payload), len(payload)
    return partial(_same, _part(routes, method, frame(payload))), KEPT_BYTES_MAX


def unclaimed(path: str) -> Make:
    """Return the maker of the part of a call that no service claims."""
    return partial(_same, {"method": path.rpartition("/")[2][:PATH_CHARACTERS_MAX]})


def _kept_items(method: Method | None, items: bytes) -> bytes | None:
    """Return the part of a span's items that is read; None if that is too large to keep."""
    if len(items) <= KEPT_BYTES_MAX:
        return items
    if method is None or method.name == TRANSACT:
        return None  # all parts of transactions are counted
    try:
        first = first_frame(items)
    except FramingError:
        return None
    return frame(first) if len(first) <= KEPT_BYTES_MAX else None


def _same(part: Record) -> Record:
    return part


def _part_of_payload(routes: Routes, method: Method, payload: bytes) -> Record:
    if method.name == TRANSACT:
        return _part(routes, method, frame(payload))
    return {"method": method.name, "request": told_request(method.request, payload)}


def _part(routes: Routes, method: Method, items: bytes) -> Record:
    """Return what is recorded of a method's commands; the parts of a transaction are counted."""
    part: Record = {"method": method.name}
    if method.name == TRANSACT and (parts := _methods_in(routes, items)):
        part["parts"] = dict(parts)
    try:
        part["request"] = told_request(method.request, first_frame(items))
    except FramingError:
        part["request"] = None
    return part


def _span(
    routes: Routes, method: Method | None, count: int, items: bytes, errors: Errors
) -> Record:
    part: Record = {"method": UNKNOWN} if method is None else _part(routes, method, items)
    part["count"] = count
    if errors:
        _add_refused(part, errors)
    return part


def _add_refused(part: Record, errors: Errors) -> None:
    # Without one Counter each: a request may have thousands of spans, all of them refused.
    counts: dict[errors_pb2.Reason.ValueType, int] = {}
    for each in errors:
        reason = each.error.reason
        counts[reason] = counts.get(reason, 0) + 1
    refused: dict[str, int] = part.setdefault("refused", {})
    for number, count in counts.items():
        name = reason_name(number)
        refused[name] = refused.get(name, 0) + count
    if "details" not in part:
        part["details"] = dict(Refusal.from_error(errors[0].error).details)


def _methods_in(routes: Routes, transaction: bytes) -> Counter[str]:
    return Counter(_name(routes, code) for code in codes_of_transaction(transaction))


def _name(routes: Routes, code: int) -> str:
    method = routes.find(code)
    return UNKNOWN if method is None else method.name


def _told(spans: KeptSpans) -> Record:
    parts, omitted = spans
    told = {"methods": [make() for make in parts]}
    return {**told, "omitted": omitted} if omitted else told


def _summed_up(
    routes: Routes, spans: Iterable[submit_pb2.Span], errors: Sequence[Errors]
) -> list[Record]:
    """Return what is recorded of spans by method: counts, refusals, and parts of transactions."""
    summed: dict[str, Record] = {}
    for index, span in enumerate(spans):
        method = routes.find(span.code)
        name = UNKNOWN if method is None else method.name
        part = summed.setdefault(name, {"method": name, "count": 0})
        part["count"] += span.count
        if name == TRANSACT:
            parts = part.setdefault("parts", {})
            for of_part, count in _methods_in(routes, span.items).items():
                parts[of_part] = parts.get(of_part, 0) + count
        if index < len(errors) and errors[index]:
            _add_refused(part, errors[index])
    return list(summed.values())


def _is_refused_in_part(record: Record) -> bool:
    return any("refused" in part for part in (*record["methods"], *record.get("omitted", ())))
