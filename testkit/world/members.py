"""Programs that are members of one consumer group, and the judge of what they read.

Each stays in the group by the real library, through every fault, and reads what its member owns.
Some are static, end now and then, and come back. At no time may two programs read one partition.
After all faults every partition must be read. What they commit has a judge of its own
(`testkit.world.member_offsets`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Final
from unittest import mock

from coordinator.gateway import member_checks, member_notices
from testkit.world.member_offsets import AcknowledgedOffsets, MemberOffsets
from testkit.world.process import telling
from viewstamp import limits
from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.client import Client, connect
from viewstamp.client.errors import ClientError
from viewstamp.errors import Refusal
from viewstamp.limits import ROOT_USERNAME

if TYPE_CHECKING:
    from testkit.world.clients import Access
    from testkit.world.process import WorldProcess
    from testkit.world.schedule import WorldSchedule
    from testkit.world.world import World
    from viewstamp.client.membership import GroupMember

_GROUP: Final = ("of members", "events", "readers")
_PARTITIONS: Final = 5
_CONNECT_PATIENCE_S: Final = 120.0
_PAUSE_S: Final = 0.2
_LOOK_AGAIN_S: Final = 0.05
# A static member ends after so many looks at what it owns.
_LIFE_LOOKS: Final = (20, 200)
_IS_THERE: Final = frozenset(
    {
        Reason.REASON_STREAM_EXISTS,
        Reason.REASON_TOPIC_EXISTS,
        Reason.REASON_GROUP_EXISTS,
    }
)


# A run takes seconds, in which none of the product's times would pass.
_SHORT: Final = (
    (limits, "MEMBER_TIMEOUT_MIN_US", 100_000),
    (limits, "MEMBER_HEARTBEAT_MS", 200),
    (limits, "MEMBER_UNSETTLED_HEARTBEAT_MS", 50),
    (limits, "REVOCATION_TIMEOUT_US", 500_000),
    (member_checks, "MEMBER_CHECK_INTERVAL_MS", 250),
    (member_notices, "NOTICES_TOGETHER_MAX", 1),
)
_TIMEOUT_MS: Final = 1_000


@contextmanager
def short_times() -> Iterator[None]:
    """Let silent and late members be removed within a second or two."""
    with ExitStack() as stack:
        for module, name, value in _SHORT:
            stack.enter_context(mock.patch.object(module, name, value))
        yield


@dataclass
class Reading:
    """A time, from one look to another, at which a program read a partition without a break."""

    program: str
    partition: int
    begin_ns: int
    end_ns: int


class PartitionsRead:
    """What all programs of a run read, and when."""

    def __init__(self, schedule: WorldSchedule, acknowledged: AcknowledgedOffsets) -> None:
        self._schedule = schedule
        self.acknowledged = acknowledged
        self.readings: list[Reading] = []
        self.now: dict[str, frozenset[int]] = {}
        """What each program reads at this moment, as of its last look."""
        self._under_way: dict[tuple[str, int], Reading] = {}

    def look(self, program: str, owned: Iterable[int]) -> None:
        """Note what a program reads now."""
        now_ns, owned = self._schedule.now_ns, frozenset(owned)
        for partition in self.now.get(program, frozenset()) - owned:
            del self._under_way[program, partition]
        for partition in sorted(owned):
            reading = self._under_way.get((program, partition))
            if reading is None:
                reading = Reading(program, partition, now_ns, now_ns)
                self._under_way[program, partition] = reading
                self.readings.append(reading)
            reading.end_ns = now_ns
        self.now[program] = owned

    @property
    def all_are_read(self) -> bool:
        """Whether each partition is read."""
        return {p for owned in self.now.values() for p in owned} == set(range(_PARTITIONS))

    def violations(self) -> list[str]:
        """Return when two programs read one partition, and who was told too low an offset."""
        found = list(self.acknowledged.violations)
        last: dict[int, Reading] = {}
        for reading in sorted(self.readings, key=lambda each: (each.begin_ns, each.program)):
            before = last.get(reading.partition)
            if before and before.program != reading.program and reading.begin_ns < before.end_ns:
                found.append(
                    f"member {reading.program} read partition {reading.partition} at"
                    f" {reading.begin_ns} ns, and {before.program} until {before.end_ns} ns"
                )
            if before is None or reading.end_ns > before.end_ns:
                last[reading.partition] = reading
        return found


class MemberProgram:
    """One process that reads what its member owns, in one life after another, until told to end."""

    def __init__(
        self, name: str, instance_id: str, seed: int, access: Access, read: PartitionsRead
    ) -> None:
        self.is_ending = False
        """Whether it ends once every partition is read."""
        self._has_ended = False
        self._name = name
        self._instance_id = instance_id
        self._random = Random(seed)
        self._access = access
        self._read = read

    async def run(self) -> None:
        """Be a member, and be one again."""
        while not self._has_ended:
            # As long as there are faults; what must hold is judged in the end.
            with suppress(ClientError, Refusal):
                await self._live()
            self._read.look(self._name, ())
            await asyncio.sleep(_PAUSE_S)

    async def _live(self) -> None:
        addresses = list(self._access.addresses)
        self._random.shuffle(addresses)
        client = await connect(
            addresses,
            username=ROOT_USERNAME,
            password=self._access.password,
            connect_timeout_s=_CONNECT_PATIENCE_S,
            timeout_s=_CONNECT_PATIENCE_S,
        )
        async with client:
            await _make_group(client)
            async with client.groups.member(*_GROUP, instance_id=self._instance_id) as member:
                acknowledged = self._read.acknowledged
                offsets = MemberOffsets(self._name, client, _GROUP, member, acknowledged)
                await self._stay(member, offsets)

    async def _stay(self, member: GroupMember, offsets: MemberOffsets) -> None:
        tasks = [asyncio.create_task(each) for each in (_follow(member, offsets), offsets.go_on())]
        looks = self._random.randint(*_LIFE_LOOKS) if self._instance_id else 0
        try:
            while not (self._has_ended or any(each.done() for each in tasks)):
                self._read.look(self._name, member.owned)
                self._has_ended = self.is_ending and self._read.all_are_read
                await asyncio.sleep(_LOOK_AGAIN_S)
                looks -= 1
                if looks == 0 and not self.is_ending:
                    break
        finally:
            self._read.look(self._name, ())
            for each in tasks:
                each.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        for each in tasks:
            if not each.cancelled():
                each.result()


async def _follow(member: GroupMember, offsets: MemberOffsets) -> None:
    async for change in member:
        await offsets.take(change)


async def _make_group(client: Client) -> None:
    stream, topic, group = _GROUP
    for making in (
        lambda: client.streams.create(stream),
        lambda: client.topics.create(stream, topic, partitions_count=_PARTITIONS),
        lambda: client.groups.create(stream, topic, group, member_timeout_ms=_TIMEOUT_MS),
    ):
        try:
            await making()
        except Refusal as refusal:
            if refusal.reason not in _IS_THERE:
                raise


class Members:
    """The programs of a run. `failed` is told of each that ended by an error."""

    def __init__(self, world: World, failed: Callable[[str], None]) -> None:
        self.read = PartitionsRead(world.schedule, AcknowledgedOffsets(world.marks))
        self._world = world
        self._failed = failed
        self._programs: dict[WorldProcess, MemberProgram] = {}

    def begin(self, access: Access, count: int) -> None:
        """Start so many; every second one is static."""
        for number in range(count):
            name = f"m{number}"
            process = self._world.process(name, self._world.machine(f"10.0.4.{number + 1}"))
            instance_id = f"instance-{number}" if number % 2 else ""
            seed = self._world.schedule.random.getrandbits(64)
            program = MemberProgram(name, instance_id, seed, access, self.read)
            self._programs[process] = program
            process.ended = telling(self._failed, f"member {name}")
            process.run(program.run)

    def end(self) -> None:
        """Let each end once every partition is read."""
        for program in self._programs.values():
            program.is_ending = True

    @property
    def processes(self) -> Sequence[WorldProcess]:
        """All that were started."""
        return tuple(self._programs)

    @property
    def are_over(self) -> bool:
        """Whether each has ended."""
        return not any(process.is_alive for process in self._programs)
