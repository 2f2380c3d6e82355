"""Callers with the client library: transactions over all domains, single writes and reads."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

from google.protobuf.message import Message

from testkit.oracles.transactions import ReadVersion, Transaction, TransactionOutcome, Written
from testkit.torture.keys import (
    APPENDS_MAX,
    LIST,
    KeyPlace,
    read_of,
    seen_in,
    write_of,
)
from testkit.torture.recorder import Recorder, now_ns
from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.api.users.v1 import users_service_pb2 as users_pb2
from viewstamp.client import Client, ClientError
from viewstamp.client.errors import TimedOut
from viewstamp.client.identifiers import identifier
from viewstamp.client.verdicts import RetryVerdict, verdict_on
from viewstamp.errors import Refusal

PLACES_MAX: Final = 4
# Lists only grow, and every read has all of one: so few writes add to them.
LISTS_PERCENT: Final = 15
# Nobody has this id: a transaction with such a part must change nothing.
NO_USER: Final = 2**40
# Refusals that a caller may get for good while replicas come and go; each changed nothing.
PASSING: Final = frozenset({Reason.REASON_NO_SPACE, Reason.REASON_COST_EXCEEDED})

Result = list[Any]


class TransactionWriter:
    """One caller with a client of its own; it calls again once it was answered or gave up."""

    def __init__(
        self, name: str, client: Client, places: Sequence[KeyPlace], recorder: Recorder, seed: str
    ) -> None:
        self.is_over = False
        self._name = name
        self._client = client
        self._places = places
        self._recorder = recorder
        self._random = random.Random(seed)
        self._calls = 0
        self._appends: Counter[str] = Counter()
        # The last version of each register that this caller knows, and its revision.
        self._known: dict[str, ReadVersion] = {}

    async def run(self) -> None:
        """Call until it is over."""
        weights: dict[Callable[[], Awaitable[None]], int] = {
            self._transact: 45,
            self._write: 20,
            self._read: 15,
            self._replace: 12,
            self._fail: 8,
        }
        while not self.is_over:
            (action,) = self._random.choices(tuple(weights), tuple(weights.values()))
            self._calls += 1
            await action()

    async def _transact(self) -> None:
        """Write several places in one transaction."""
        writes = self._drawn(self._random.randint(2, PLACES_MAX))
        requests = [write_of(place, version) for place, version in writes]
        await self._record("transaction", writes, lambda: self._client.transact(requests))

    async def _write(self) -> None:
        """Write one place, in a command of its own."""
        ((place, version),) = self._drawn(1)
        request = write_of(place, version)
        await self._record("command", [(place, version)], lambda: self._alone(request))

    async def _replace(self) -> None:
        """Read a register; then write it and other places, if nobody wrote it in between."""
        place = self._random.choice([one for one in self._places if one.kind != LIST])
        known = self._known.get(place.key)
        if known is None or self._random.random() < 0.5:
            known = await self._read_alone(place)
        if known is None:
            return
        others = [one for one in self._drawn(2) if one[0] is not place]
        writes = [(place, self._version(PLACES_MAX)), *others]
        requests = [write_of(*writes[0], known.revision), *(write_of(*one) for one in others)]
        await self._record(
            "conditional transaction",
            writes,
            lambda: self._client.transact(requests),
            expected=known,
        )

    async def _fail(self) -> None:
        """Send a transaction whose last part cannot succeed."""
        writes = self._drawn(2)
        hopeless = users_pb2.UpdateUserRequest(user=identifier(NO_USER), username="nobody")
        requests = [*(write_of(*one) for one in writes), hopeless]
        await self._record(
            "failing transaction",
            writes,
            lambda: self._client.transact(requests),
            allowed=Reason.REASON_USER_NOT_FOUND,
        )

    async def _read(self) -> None:
        """Read one place."""
        await self._read_alone(self._random.choice(self._places))

    async def _read_alone(self, place: KeyPlace) -> ReadVersion | None:
        called_at = now_ns()
        try:
            answer = await self._client.call(read_of(place))
        except (ClientError, Refusal) as error:
            self._recorder.counts[f"read failed: {type(error).__name__}"] += 1
            if isinstance(error, Refusal) and verdict_on(error) is RetryVerdict.FINAL:
                self._recorder.surprise(f"{self._name}: a read was refused: {error}")
            return None
        reads, lists = seen_in([(place, answer)])
        transaction = Transaction(
            name=f"{self._name}, call {self._calls} (read)",
            called_at=called_at,
            returned_at=now_ns(),
            outcome=TransactionOutcome.COMMITTED,
            revision=answer.header.revision,
            reads=reads,
            lists=lists,
        )
        self._recorder.add(transaction, "read by a writer")
        for read in reads:
            self._known[read.key] = read
        return reads[0] if reads else None

    async def _alone(self, request: Message) -> Result:
        return [await self._client.call(request)]

    async def _record(
        self,
        kind: str,
        writes: Sequence[tuple[KeyPlace, str]],
        send: Callable[[], Awaitable[Result]],
        *,
        expected: ReadVersion | None = None,
        allowed: Reason.ValueType | None = None,
    ) -> None:
        """Send writes, and keep what became of them."""
        called_at, answers = now_ns(), None
        outcome = TransactionOutcome.UNKNOWN
        try:
            answers = await send()
            outcome = TransactionOutcome.COMMITTED
        except TimedOut:
            outcome = TransactionOutcome.ABORTED
        except Refusal as refusal:
            if refusal.details.get("outcome") != "unknown":
                outcome = TransactionOutcome.ABORTED
                self._judge_refusal(refusal, kind, expected is not None, allowed)
        except ClientError as error:
            self._recorder.counts[f"unknown: {type(error).__name__}"] += 1
        written = tuple(Written(place.key, version) for place, version in writes)
        revision = answers[0].header.revision if answers else None
        is_known = outcome is not TransactionOutcome.UNKNOWN
        transaction = Transaction(
            name=f"{self._name}, call {self._calls} ({kind})",
            called_at=called_at,
            returned_at=now_ns() if is_known else None,
            outcome=outcome,
            revision=revision,
            writes=written,
            reads=(expected,) if expected is not None and answers else (),
        )
        self._recorder.add(transaction, kind)
        if answers is not None and allowed is not None:
            self._recorder.surprise(f"it cannot have succeeded: {transaction}")
        if revision is not None:
            for key, version in written:
                self._known[key] = ReadVersion(key, version, revision)

    def _judge_refusal(
        self, refusal: Refusal, kind: str, is_conditional: bool, allowed: Reason.ValueType | None
    ) -> None:
        """A refusal that changed nothing must have a reason: names here are new, places exist."""
        self._recorder.counts[f"refused: {refusal.name}"] += 1
        is_expected = refusal.reason == allowed or refusal.reason in PASSING
        if is_conditional and refusal.reason == Reason.REASON_REVISION_MISMATCH:
            is_expected = True
        if not is_expected and verdict_on(refusal) is RetryVerdict.FINAL:
            self._recorder.surprise(f"{self._name}, call {self._calls} ({kind}): {refusal}")

    def _drawn(self, count: int) -> list[tuple[KeyPlace, str]]:
        """Return places that are not full lists, each with a version that was never written."""
        has_lists = self._random.randrange(100) < LISTS_PERCENT
        free = [
            place
            for place in self._places
            if place.kind != LIST or (has_lists and self._appends[place.key] < APPENDS_MAX)
        ]
        places = self._random.sample(free, count)
        self._appends.update(place.key for place in places)
        return [(place, self._version(number)) for number, place in enumerate(places)]

    def _version(self, number: int) -> str:
        return f"{self._name}-{self._calls}-{number}"
