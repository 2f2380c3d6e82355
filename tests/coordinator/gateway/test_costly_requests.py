"""How many commands with secrets one request may hold, and in which portions they are prepared."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from coordinator.base.slices import at_once
from coordinator.gateway.normalize import Normalizer, Origin
from viewstamp.api.domain.v1 import domain_service_pb2 as domain_pb2
from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.api.log.v1 import log_pb2
from viewstamp.api.submit.v1 import submit_service_pb2 as submit_pb2
from viewstamp.errors import Refusal
from viewstamp.framing import frame
from viewstamp.limits import (
    NORMALIZED_COMMANDS_MAX,
    NORMALIZED_TOGETHER_MAX,
    REQUEST_COMMANDS_MAX,
    TRANSACTION_PARTS_MAX,
)

COSTLY: Any = SimpleNamespace(normalize=True, name="CreateUser", code=100, owner=2)
CHEAP: Any = SimpleNamespace(normalize=False, name="CreateStream", code=200, owner=1)
TRANSACT: Any = SimpleNamespace(normalize=False, name="Transact")
ROUTES: Any = SimpleNamespace(find={100: COSTLY, 200: CHEAP}.get)


class Owner:
    """A service that returns what it is given, and counts."""

    def __init__(self) -> None:
        """Begin without a call."""
        self.portions: list[tuple[int, int]] = []

    async def normalize(
        self, request: domain_pb2.NormalizeRequest, timeout_ms: int
    ) -> domain_pb2.NormalizeResponse:
        """Remember the portion."""
        self.portions.append((request.first_index, request.count))
        return domain_pb2.NormalizeResponse(items=request.items)


def test_request_with_too_many_passwords_is_refused() -> None:
    """A request holds thousands of commands, but only a few of the costly ones."""
    normalizer = Normalizer(ROUTES, {})
    most = (COSTLY, NORMALIZED_COMMANDS_MAX, b"")
    at_once(normalizer.checking_count([(CHEAP, 8_000, b""), most]))
    with pytest.raises(Refusal) as caught:
        at_once(normalizer.checking_count([most, (CHEAP, 1, b""), (COSTLY, 1, b"")]))
    assert caught.value.reason == Reason.REASON_COMMAND_TOO_LARGE


def test_passwords_in_transactions_count() -> None:
    """Passwords in several transactions count together, and with those beside them."""
    normalizer = Normalizer(ROUTES, {})
    half = (TRANSACT, 1, transaction(NORMALIZED_COMMANDS_MAX // 2))
    at_once(normalizer.checking_count([half, half, (CHEAP, 10, b"")]))
    for one_more in ((COSTLY, 1, b""), (TRANSACT, 1, transaction(1))):
        with pytest.raises(Refusal) as caught:
            at_once(normalizer.checking_count([half, half, one_more]))
        assert caught.value.details["commands"] == str(NORMALIZED_COMMANDS_MAX + 1)


def transaction(costly: int) -> bytes:
    """Return a transaction with so many passwords, and so many other commands."""
    request = submit_pb2.TransactRequest()
    for _ in range(costly):
        request.parts.add(code=100)
    request.parts.add(code=200)
    return frame(request.SerializeToString())


def test_parts_of_transactions_are_commands_of_their_request() -> None:
    """All transactions of a request may have as many parts as a request may have commands."""
    normalizer = Normalizer(ROUTES, {})
    request = submit_pb2.TransactRequest()
    for _ in range(TRANSACTION_PARTS_MAX):
        request.parts.add(code=200)
    whole = (TRANSACT, 1, frame(request.SerializeToString()))
    fitting = REQUEST_COMMANDS_MAX // TRANSACTION_PARTS_MAX
    at_once(normalizer.checking_count([whole] * fitting))
    with pytest.raises(Refusal) as caught:
        at_once(normalizer.checking_count([whole] * (fitting + 1)))
    assert caught.value.reason == Reason.REASON_COMMAND_TOO_LARGE
    assert caught.value.details["commands"] == str((fitting + 1) * TRANSACTION_PARTS_MAX)


async def test_passwords_are_prepared_in_portions() -> None:
    """Each portion of passwords has a bounded wait; nothing is lost or changes places."""
    owner = Owner()
    items = b"".join(frame(b"%d" % number) for number in range(2 * NORMALIZED_TOGETHER_MAX + 1))
    span = log_pb2.LoggedSpan(code=100, count=2 * NORMALIZED_TOGETHER_MAX + 1, items=items)
    await Normalizer(ROUTES, {2: owner}).normalize(COSTLY, span, Origin(0, 1, 1, 5, b"", 1))
    first = NORMALIZED_TOGETHER_MAX
    assert owner.portions == [(5, first), (5 + first, first), (5 + 2 * first, 1)]
    assert span.items == items
