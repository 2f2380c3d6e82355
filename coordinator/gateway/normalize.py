"""What may enter the log: nothing random, local or secret. The owner's service decides.

Payloads of flagged methods are sent to their owner's Normalize, whose result is logged in their
place. Refused ones stay as holes, so that no index or revision shifts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final, Protocol

import grpc

from coordinator.base.slices import Steps
from coordinator.gateway.fingerprints import SentSpan
from coordinator.gateway.routes import Routes
from viewstamp.api.domain.v1 import domain_service_pb2 as domain_pb2
from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.api.log.v1 import log_pb2
from viewstamp.api.submit.v1 import submit_service_pb2 as submit_pb2
from viewstamp.errors import Refusal
from viewstamp.framing import FramingError, frame, unframe
from viewstamp.limits import (
    NORMALIZED_COMMANDS_MAX,
    NORMALIZED_TOGETHER_MAX,
    REQUEST_COMMANDS_MAX,
    TRANSACTION_PARTS_MAX,
)
from viewstamp.routing import Method, MethodKind

# Hashing takes tens of milliseconds of CPU per password and may queue behind others.
NORMALIZE_TIMEOUT_MS: Final = 30_000
TRANSACT: Final = "Transact"


class Normalizing(Protocol):
    """A domain service as seen from here."""

    async def normalize(
        self, request: domain_pb2.NormalizeRequest, timeout_ms: int
    ) -> domain_pb2.NormalizeResponse:
        """Return the loggable form."""


@dataclass(frozen=True, slots=True)
class Origin:
    """The origin of a span, from which secrets are derived, the same on a retry."""

    user_id: int
    session_id: int
    number: int
    first_index: int
    nonce: bytes  # random, for callers without a session
    credential_revision: int

    def moved(self, count: int) -> Origin:
        """Return the origin of the commands that follow the first `count`."""
        return replace(self, first_index=self.first_index + count)


Suffixes = dict[int, bytes]  # by index in the span


class Normalizer:
    """Turns spans into their loggable form."""

    def __init__(self, routes: Routes, services: Mapping[int, Normalizing]) -> None:
        self._routes = routes
        self._services = services

    def needed(self, method: Method) -> bool:
        """Return whether spans of the method must be normalized."""
        return method.normalize or method.name == TRANSACT

    def wants(self, spans: Iterable[SentSpan]) -> bool:
        """Return whether a request from outside must be normalized; unknown codes need not."""
        for code, _, _ in spans:
            method = self._routes.find(code)
            if method is not None and self.needed(method):
                return True
        return False

    async def normalize(self, method: Method, span: log_pb2.LoggedSpan, origin: Origin) -> Suffixes:
        """Replace the span's items by their loggable form; return what only the caller may see.

        Raises Refusal if the owner does not answer, or if a transaction is malformed.
        """
        if method.name == TRANSACT:
            return await self._transaction(span, origin)
        portions = list(_portions(span))
        suffixes: Suffixes = {}
        span.items = b""
        for first, count, items in portions:
            response = await self._ask(method, count, items, origin.moved(first), suffix_only=False)
            span.items += response.items
            for refused in response.errors:
                span.refused.add(index=first + refused.index, error=refused.error)
            suffixes |= {first + suffix.index: suffix.suffix for suffix in response.suffixes}
        return suffixes

    def checking_count(self, spans: Iterable[tuple[Method, int, bytes]]) -> Steps[None]:
        """Raise Refusal if too many commands of one request must be normalized, in steps.

        Each may cost as much as thousands of others, also as part of a transaction.
        """
        count = part_count = 0
        for method, commands, items in spans:
            if method.name == TRANSACT:
                codes = codes_of_transaction(items)
                part_count += len(codes)
                count += sum(map(self._is_costly, codes))
            elif method.normalize:
                count += commands
            yield
        if part_count > REQUEST_COMMANDS_MAX:
            raise _too_many_parts(part_count)
        if count > NORMALIZED_COMMANDS_MAX:
            raise Refusal(
                Reason.REASON_COMMAND_TOO_LARGE,
                f"the request has {count} commands with secrets that must be prepared, such as"
                f" passwords; at most {NORMALIZED_COMMANDS_MAX} are allowed: split it",
                commands=count,
                commands_max=NORMALIZED_COMMANDS_MAX,
            )

    def _is_costly(self, code: int) -> bool:
        part = self._routes.find(code)
        return part is not None and part.normalize

    async def suffixes(self, method: Method, count: int, items: bytes, origin: Origin) -> Suffixes:
        """Return only the suffixes, for a retry of a request that is already logged."""
        if not method.normalize:
            return {}
        response = await self._ask(method, count, items, origin, suffix_only=True)
        return {suffix.index: suffix.suffix for suffix in response.suffixes}

    async def _ask(
        self, method: Method, count: int, items: bytes, origin: Origin, *, suffix_only: bool
    ) -> domain_pb2.NormalizeResponse:
        request = domain_pb2.NormalizeRequest(
            code=method.code,
            count=count,
            items=items,
            user_id=origin.user_id,
            session_id=origin.session_id,
            number=origin.number,
            first_index=origin.first_index,
            suffix_only=suffix_only,
            nonce=origin.nonce,
            credential_revision=origin.credential_revision,
        )
        try:
            return await self._services[method.owner].normalize(request, NORMALIZE_TIMEOUT_MS)
        except grpc.RpcError as error:
            if error.code() is grpc.StatusCode.INVALID_ARGUMENT:
                raise Refusal(
                    Reason.REASON_INTERNAL,
                    f"the service of {method.full_name} refuses to prepare the request:"
                    f" {error.details()}",
                    method=method.full_name,
                ) from error
            if error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED:
                raise Refusal(
                    Reason.REASON_OVERLOADED,
                    f"{method.full_name}: {error.details()}",
                    method=method.full_name,
                ) from error
            raise Refusal(
                Reason.REASON_DOMAIN_RESTARTING,
                f"the service of {method.full_name} does not answer: try again",
                method=method.full_name,
            ) from error

    async def _transaction(self, span: log_pb2.LoggedSpan, origin: Origin) -> Suffixes:
        transaction = _parse_transaction(span.items)
        for index, part in enumerate(transaction.parts):
            await self._part(part, index, origin)
        span.items = frame(transaction.SerializeToString())
        return {}

    async def _part(self, part: submit_pb2.TransactionPart, index: int, origin: Origin) -> None:
        method = self._routes.public_code(part.code, MethodKind.COMMAND)
        _check_part(method, index)
        self._routes.check_command(method, part.request)
        if not method.normalize:
            return
        response = await self._ask(method, 1, frame(part.request), origin, suffix_only=False)
        if response.errors:
            raise Refusal.from_error(response.errors[0].error).with_details(part=index)
        if response.suffixes:
            raise _bad_transaction(
                f"part {index} ({method.name}) has a secret result: call it alone"
            )
        part.request = unframe(response.items)[0]


def _portions(span: log_pb2.LoggedSpan) -> Iterator[tuple[int, int, bytes]]:
    """Yield the span's commands in portions: index of the first, count, items.

    The owner refuses, as a whole, a span whose items do not match its count.
    """
    try:
        frames = unframe(span.items)
    except FramingError:
        frames = []
    if len(frames) != span.count:
        yield 0, span.count, span.items
        return
    for first in range(0, len(frames), NORMALIZED_TOGETHER_MAX):
        portion = frames[first : first + NORMALIZED_TOGETHER_MAX]
        yield first, len(portion), b"".join(map(frame, portion))


def _parse_transaction(items: bytes) -> submit_pb2.TransactRequest:
    from google.protobuf.message import DecodeError

    try:
        frames = unframe(items)
        if len(frames) != 1:
            raise _bad_transaction("a span holds one transaction")
        transaction = submit_pb2.TransactRequest.FromString(frames[0])
    except FramingError as error:
        raise _bad_transaction(str(error)) from error
    except DecodeError as error:
        raise _bad_transaction(
            "its bytes are not a TransactRequest: send its protobuf encoding"
        ) from error
    if not 1 <= len(transaction.parts) <= TRANSACTION_PARTS_MAX:
        raise _bad_transaction(
            f"{len(transaction.parts)} parts; 1 to {TRANSACTION_PARTS_MAX} are allowed"
        )
    return transaction


def codes_of_transaction(items: bytes) -> list[int]:
    """Return the codes of a transaction's parts; none if it is malformed, and so is refused."""
    try:
        return [part.code for part in _parse_transaction(items).parts]
    except Refusal:
        return []


def _check_part(method: Method, index: int) -> None:
    from viewstamp.api.routing.v1.routing_pb2 import STAGE_SESSIONS

    if method.owner == STAGE_SESSIONS:
        raise _bad_transaction(f"part {index} ({method.name}) cannot be part of a transaction")


def _too_many_parts(count: int) -> Refusal:
    return Refusal(
        Reason.REASON_COMMAND_TOO_LARGE,
        f"the transactions of the request have {count} parts; at most {REQUEST_COMMANDS_MAX} are"
        " allowed: split it",
        commands=count,
        commands_max=REQUEST_COMMANDS_MAX,
    )


def _bad_transaction(why: str) -> Refusal:
    return Refusal(Reason.REASON_MALFORMED_REQUEST, f"the transaction is malformed: {why}")
