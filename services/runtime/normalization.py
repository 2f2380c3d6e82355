"""Normalization: payloads made loggable before they are sequenced.

A plan is made in one step, reading the machine; its parts run in threads and do not touch it.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from services.runtime.domain import Costly, NormalizeCall, Normalized
from services.runtime.failures import LOCAL_FAILURES, Alarm, ApplyError, internal_error
from services.runtime.handlers import Record
from services.runtime.spans import decode, join
from viewstamp.api.domain.v1 import domain_service_pb2 as pb
from viewstamp.api.errors.v1 import errors_pb2
from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.errors import Refusal
from viewstamp.limits import TOKEN_STAMP

NONCE_BYTES: Final = 16
_INDEX: Final = struct.Struct(">I")
_SESSION_AND_NUMBER: Final = struct.Struct(">QQ")

# The outcome of one part: the item's encoding and suffix, or why it is refused.
NormalizedPart = tuple[bytes, bytes] | errors_pb2.Error


@dataclass(frozen=True, slots=True)
class Part:
    """The remaining computation for one index, independent of the machine."""

    run: Callable[[], NormalizedPart]
    is_costly: bool = False


@dataclass(frozen=True, slots=True)
class NormalizePlan:
    """One part per index; `revision` is that of the machine when it was read."""

    revision: int
    parts: list[Part]

    def assemble(self, outcomes: Sequence[NormalizedPart]) -> pb.NormalizeResponse:
        """Return the response for the parts' outcomes, in their order."""
        response = pb.NormalizeResponse(revision=self.revision)
        items = []
        for index, outcome in enumerate(outcomes):
            if isinstance(outcome, errors_pb2.Error):
                response.errors.add(index=index, error=outcome)
                items.append(b"")
                continue
            item, suffix = outcome
            items.append(item)
            if suffix:
                response.suffixes.add(index=index, suffix=suffix)
        response.items = join(items)
        return response

    def run(self) -> pb.NormalizeResponse:
        """Run all parts here and now, one after the other."""
        return self.assemble([part.run() for part in self.parts])


def plan_normalization(
    record: Record, state: Any, revision: int, request: pb.NormalizeRequest, alarms: list[Alarm]
) -> NormalizePlan:
    """Return the plan for a request of a normalized method.

    Raises ProtocolError for a bad request, and Refusal for one that comes too early.
    """
    _check_known(request, revision)
    span = decode(record.request, record.batch, request.items, request.count, ())
    origin = _origin(request)
    parts: list[Part] = []
    for index, item in enumerate(span.requests):
        error = span.skipped.get(index)
        if error is not None:
            parts.append(_constant(error))
            continue
        call = NormalizeCall(
            request.user_id,
            origin + _INDEX.pack(request.first_index + index),
            request.credential_revision,
        )
        guard = _Guard(record.full_name, revision, alarms)
        if request.suffix_only:
            parts.append(Part(guard.part(_suffix_only(record, item, call))))
        else:
            parts.append(guard.plan(record, state, item, call))
    return NormalizePlan(revision, parts)


def _check_known(request: pb.NormalizeRequest, revision: int) -> None:
    """Raise Refusal if the state is older than the caller's credentials, so it cannot know them."""
    if request.credential_revision & ~TOKEN_STAMP > revision:
        raise Refusal.of(Reason.REASON_OVERLOADED, "credentials_ahead")


def _origin(request: pb.NormalizeRequest) -> bytes:
    """Return bytes unique to the request and, where there can be a retry, the same on it."""
    if request.session_id:
        return _SESSION_AND_NUMBER.pack(request.session_id, request.number)
    if len(request.nonce) != NONCE_BYTES:
        raise ApplyError(
            f"a nonce of {len(request.nonce)} bytes; without a session {NONCE_BYTES} are due"
        )
    return request.nonce


def _constant(outcome: NormalizedPart) -> Part:
    return Part(lambda: outcome)


def _suffix_only(record: Record, item: Any, call: NormalizeCall) -> Callable[[], NormalizedPart]:
    return lambda: (b"", record.suffix(item, call) if record.suffix is not None else b"")


def _encoded(compute: Callable[[], Normalized]) -> Callable[[], NormalizedPart]:
    def encode() -> NormalizedPart:
        normalized = compute()
        return normalized.request.SerializeToString(deterministic=True), normalized.suffix

    return encode


@dataclass(frozen=True, slots=True)
class _Guard:
    """Turns exceptions into errors, both while the plan is made and when a part runs."""

    where: str
    revision: int
    alarms: list[Alarm]

    def plan(self, record: Record, state: Any, item: Any, call: NormalizeCall) -> Part:
        """Let the normalizer read the state now; return the remaining computation."""
        assert record.normalizer is not None  # the caller looked
        try:
            compute = record.normalizer(state, item, call)
        except LOCAL_FAILURES:
            raise
        except Exception as error:
            return _constant(self.answer(error))
        if isinstance(compute, Costly):
            return Part(self.part(_encoded(compute.compute)), is_costly=True)
        return Part(self.part(_encoded(compute)))

    def part(self, compute: Callable[[], NormalizedPart]) -> Callable[[], NormalizedPart]:
        """Return a function that answers errors instead of raising them."""

        def run() -> NormalizedPart:
            try:
                return compute()
            except LOCAL_FAILURES:
                raise
            except Exception as error:
                return self.answer(error)

        return run

    def answer(self, error: Exception) -> errors_pb2.Error:
        """Return the answer to a refusal or, with an alarm, to a defect."""
        if isinstance(error, Refusal):
            return error.to_error()
        self.alarms.append(Alarm(self.where, self.revision, error))
        return internal_error(self.where)
