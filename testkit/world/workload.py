"""Clients of a world: the real library, and the history of what it was told.

A topic is a register of one key: creating it with so many partitions writes, deleting it erases,
getting it reads. Every creation has a number of partitions of its own, so each answer of a read
names the creation that it saw.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import TYPE_CHECKING, Any, Final

from testkit.oracles.history import Operation, SequentialModel
from testkit.world.options import PAUSES_MS
from testkit.world.schedule import NS_PER_S
from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.api.streams.v1 import streams_service_pb2 as streams_pb2
from viewstamp.client import Client, connect
from viewstamp.client.errors import OutcomeUnknown, TimedOut
from viewstamp.client.identifiers import identifier
from viewstamp.errors import Refusal
from viewstamp.limits import PARTITIONS_PER_REQUEST_MAX, ROOT_USERNAME

if TYPE_CHECKING:
    from testkit.world.world import World

STREAM: Final = "world"
CREATE: Final = "create"
DELETE: Final = "delete"
GET: Final = "get"
_CHANGES: Final = (CREATE, DELETE)
_CALLS_AS_DRAWN: Final = (CREATE, DELETE, GET, GET)
DONE: Final = "done"
EXISTS: Final = "exists"
ABSENT: Final = "absent"
READS: Final = frozenset({GET})
# A call has so long; its caller is then told that nobody knows what became of it.
PATIENCES_S: Final = (0.2, 1.0, 8.0, 30.0)
_DEMANDED_PATIENCE_S: Final = 60.0
_CONNECT_PATIENCE_S: Final = 120.0
# Refusals of calls that were not even begun. A healthy cluster has no reason for them.
NOT_SERVED: Final = frozenset({Reason.REASON_NO_SPACE, Reason.REASON_READ_DEADLINE})
# A topic cannot be placed while all brokers are away: it was not made.
_NOT_PLACED: Final = Reason.REASON_NOT_ENOUGH_BROKERS
# When a caller asks again who was refused.
_REFUSED_PAUSE_S: Final = 0.2
# A client notices within 10 s that nobody is at the other end, and then finds the primary.
_HEALTH_NS: Final = 20 * NS_PER_S
# A caller who has nothing to ask looks again after so long.
_IDLE_PAUSE_S: Final = 0.005
# In a rush. Shorter ones would make histories that no judge can decide.
_RUSH_PAUSE_MS: Final = 5


def _step(held: int, operation: Operation) -> tuple[object, int]:
    """Return what one operation answers, and the partitions afterwards; 0 stands for no topic."""
    if operation.kind == GET:
        return held or ABSENT, held
    if operation.kind == DELETE:
        return (DONE, 0) if held else (ABSENT, 0)
    assert isinstance(operation.argument, int), "a creation has a number of partitions"
    return (EXISTS, held) if held else (DONE, operation.argument)


REGISTER: Final = SequentialModel(initial=0, step=_step)
_UNSEEN: Final = -1


def unseen_alike(history: Sequence[Operation]) -> list[Operation]:
    """Return a history in which creations that nobody saw are alike.

    Those are creations without an answer whose number of partitions no answer tells. What number
    they have makes no difference to any answer, so the verdict is the same, and the judge need not
    try each of them in the place of each other.
    """
    told = {each.output for each in history}
    return [
        each
        if each.is_answered or each.kind != CREATE or each.argument in told
        else replace(each, argument=_UNSEEN)
        for each in history
    ]


@dataclass
class Heard:
    """What all clients of a run were told, by key."""

    operations: list[tuple[str, Operation]] = field(default_factory=list)
    unknown: int = 0
    """How many calls have an outcome that their caller does not know."""
    healed_ns: int | None = None
    """When the last fault ended."""
    neglected: list[str] = field(default_factory=list)
    """Calls that a healthy cluster did not answer."""
    created: Counter[str] = field(default_factory=Counter)
    asked: list[Callable[[Operation], None]] = field(default_factory=list)
    """Called with each call when it begins."""
    told: list[Callable[[Operation], None]] = field(default_factory=list)
    """Called with each call that was answered."""

    def gave_up(self, who: int, key: str, now_ns: int) -> None:
        """Note that a call was not answered in time."""
        if self.healed_ns is not None and now_ns - self.healed_ns > _HEALTH_NS:
            self.neglected.append(f"client {who} on {key}, until {now_ns} ns")

    def next_partitions(self, key: str) -> int:
        """Return a number of partitions with which the key was never created."""
        self.created[key] += 1
        return self.created[key]


@dataclass
class Demand:
    """How many calls all callers together are to make; whoever is free makes the next one."""

    left: int = 0
    under_way: int = 0

    @property
    def is_met(self) -> bool:
        """Whether every call was answered."""
        return not self.left and not self.under_way

    def take(self) -> bool:
        """Return whether there is a call to make, and count it as under way."""
        if not self.left:
            return False
        self.left, self.under_way = self.left - 1, self.under_way + 1
        return True

    def give_back(self, *, is_answered: bool) -> None:
        """End a call. One without an answer has to be made again."""
        self.under_way -= 1
        self.left += not is_answered


@dataclass
class Demands:
    """What callers are asked for: changes by those who have a session, reads by the others."""

    changes: Demand = field(default_factory=Demand)
    reads: Demand = field(default_factory=Demand)


class Callers:
    """The callers of one client process; each makes one call at a time, until told to end.

    With a `demand` they call only as often as it says.
    """

    def __init__(
        self,
        world: World,
        number: int,
        seed: int,
        heard: Heard,
        only_reads: bool,
        demand: Demand | None = None,
        pauses_ms: Sequence[int] = PAUSES_MS,
        name_bytes: int = 0,
    ) -> None:
        self.is_ending = False
        self.is_rushing = False
        """Whether callers pause as briefly as they may between two calls."""
        self.answered = 0
        self._world = world
        self._number = number
        self._random = Random(seed)
        self._heard = heard
        self._demand = demand
        self._name_bytes = name_bytes
        self._pause_ms_max = self._random.choice(pauses_ms)
        # A client that only reads has no session, and stays at whichever replica it comes to.
        self.only_reads = only_reads
        self.under_way: dict[int, tuple[str, Operation]] = {}
        """The key and the call, by caller."""

    async def run(
        self, addresses: list[str], password: str, callers: int, names: list[str]
    ) -> None:
        """Connect, call, and return once told to end."""
        client = await self._connected(addresses, password)
        async with client:
            await asyncio.gather(*(self._call_on(client, c, names) for c in range(callers)))

    def vanish(self) -> None:
        """Note that nobody will hear what became of the calls under way."""
        for key, operation in self.under_way.values():
            if operation.kind != GET:
                self._note(key, operation)
                self._heard.unknown += 1
        self.under_way.clear()

    async def _connected(self, addresses: list[str], password: str) -> Client:
        self._random.shuffle(addresses)
        patience_s = self._random.choice(PATIENCES_S)
        if self._demand is not None:
            patience_s = _DEMANDED_PATIENCE_S
        while True:
            try:
                return await self._connect(addresses, password, patience_s)
            except Refusal as refusal:
                if refusal.reason not in NOT_SERVED:
                    raise
                await asyncio.sleep(_REFUSED_PAUSE_S)

    async def _connect(self, addresses: list[str], password: str, patience_s: float) -> Client:
        return await connect(
            addresses,
            username=ROOT_USERNAME,
            password=password,
            timeout_s=patience_s,
            connect_timeout_s=_CONNECT_PATIENCE_S,
            register_session=not self.only_reads,
        )

    async def _call_on(self, client: Client, caller: int, names: list[str]) -> None:
        # A caller who does not know an outcome goes on as another one: a client calls in turn.
        who = self._number * 1_000_000 + caller * 1_000
        while not self.is_ending:
            if self._demand is None:
                await self._pause()
                who += not await self._call(client, who, self._random.choice(names))
            else:
                await asyncio.sleep(_IDLE_PAUSE_S)
                if self._demand.take():
                    who += not await self._call_as_demanded(self._demand, client, who, names)

    async def _pause(self) -> None:
        pause_ms = self._random.randint(0, self._pause_ms_max)
        await asyncio.sleep((_RUSH_PAUSE_MS if self.is_rushing else pause_ms) / 1000)

    async def _call_as_demanded(
        self, demand: Demand, client: Client, who: int, names: list[str]
    ) -> bool:
        answered = self.answered
        try:
            return await self._call(client, who, self._random.choice(names))
        finally:
            demand.give_back(is_answered=self.answered > answered)

    async def _call(self, client: Client, who: int, key: str) -> bool:
        """Make one call and note it; return whether its outcome is known."""
        kinds = _CHANGES if self._demand else _CALLS_AS_DRAWN
        kind = GET if self.only_reads else self._random.choice(kinds)
        if kind == CREATE and self._heard.created[key] == PARTITIONS_PER_REQUEST_MAX:
            kind = GET  # every number of partitions was used
        argument = self._heard.next_partitions(key) if kind == CREATE else 0
        called = Operation(who, kind, argument, self._world.schedule.now_ns)
        self.under_way[who] = (key, called)
        for hears in self._heard.asked:
            hears(called)
        try:
            output, revision = await self._answer(client, kind, key, argument)
        except TimedOut:
            self._heard.gave_up(who, key, self._world.schedule.now_ns)
            return True  # it changed nothing, and told nothing
        except OutcomeUnknown:
            self._heard.gave_up(who, key, self._world.schedule.now_ns)
            self._note(key, called)
            self._heard.unknown += 1
            return False
        except Refusal as refusal:
            if refusal.reason not in NOT_SERVED and refusal.reason != _NOT_PLACED:
                raise
            await asyncio.sleep(_REFUSED_PAUSE_S)
            self._heard.gave_up(who, key, self._world.schedule.now_ns)
            return True  # it was not admitted
        finally:
            self.under_way.pop(who, None)
        returned_at = self._world.schedule.now_ns
        told = replace(called, returned_at=returned_at, output=output, revision=revision)
        self._note(key, told)
        for hears in self._heard.told:
            hears(told)
        self.answered += 1
        return True

    def _note(self, key: str, operation: Operation) -> None:
        self._heard.operations.append((key, operation))
        self._world.schedule.count(key, operation)

    async def _answer(
        self, client: Client, kind: str, key: str, argument: int
    ) -> tuple[object, int | None]:
        """Return what the cluster says, and at which revision; None where it tells none."""
        try:
            return await _CALLS[kind](client, key.ljust(self._name_bytes, "-"), argument)
        except Refusal as refusal:
            if refusal.details.get("outcome") == "unknown":
                raise OutcomeUnknown(refusal.message, session_id=0, request_number=0) from refusal
            if refusal.reason == Reason.REASON_TOPIC_NOT_FOUND:
                return ABSENT, None
            if refusal.reason == Reason.REASON_TOPIC_EXISTS:
                return EXISTS, None
            raise


async def _create(client: Client, key: str, argument: int) -> tuple[object, int]:
    answer = await client.topics.create(STREAM, key, partitions_count=argument)
    return DONE, answer.header.revision


async def _delete(client: Client, key: str, argument: int) -> tuple[object, int]:
    answer = await client.topics.delete(STREAM, key)
    return DONE, answer.header.revision


async def _get(client: Client, key: str, argument: int) -> tuple[object, int]:
    request = streams_pb2.GetTopicRequest(stream=identifier(STREAM), topic=identifier(key))
    answer = await client.call(request)
    return answer.topic.partitions_count, answer.header.revision


_CALLS: Final[dict[str, Callable[[Client, str, int], Coroutine[Any, Any, tuple[object, Any]]]]] = {
    CREATE: _create,
    DELETE: _delete,
    GET: _get,
}


async def prepare(addresses: list[str], password: str) -> None:
    """Make the stream that the topics are in."""
    client = await connect(
        addresses,
        username=ROOT_USERNAME,
        password=password,
        connect_timeout_s=_CONNECT_PATIENCE_S,
        timeout_s=_CONNECT_PATIENCE_S,
    )
    async with client:
        await client.streams.create(STREAM)
