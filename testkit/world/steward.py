"""The operator of a world's members: adds replicas, promotes them, removes them, and stops them.

It is root, and the only one who changes members. Each step is repeated until the cluster says that
it is done, as an operator would: repeating does no harm. What the victims of a run may lose bounds
what it does (`member_book`).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from random import Random
from typing import TYPE_CHECKING, Any, Final, Protocol

import grpc.aio

from coordinator.app.reports import FRESH_REPORT_MS
from testkit.world.process import telling
from testkit.world.replica import CLIENT_PORT, name_of
from testkit.world.small_limits import TOO_MUCH
from testkit.world.workload import NOT_SERVED
from viewstamp.api.cluster.v1 import cluster_service_pb2 as cluster_pb2
from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.client import Client, connect
from viewstamp.client.errors import ClientError
from viewstamp.client.transport import AccessTokenSource, Credentials, Endpoint, unary
from viewstamp.errors import Refusal
from viewstamp.limits import ROOT_USERNAME

if TYPE_CHECKING:
    from testkit.world.clients import Access
    from testkit.world.member_book import MemberBook
    from testkit.world.process import WorldProcess
    from testkit.world.replica import WorldReplica
    from testkit.world.world import World

_CONNECT_PATIENCE_S: Final = 120.0
_PATIENCE_S: Final = 3.0
_AGAIN_S: Final = 0.2
_PAUSE_MS: Final = (50, 1_200)
# A replica starts so long after it was added, and stops so long after it was removed: clients that
# know no other one have to hear from it who leads.
_START_MS: Final = (0, 600)
_STOP_MS: Final = (1_000, 3_000)
# How long the directory of a removed replica disturbs nobody.
_REVIVED_MS: Final = (500, 2_500)
VOTERS_MAX: Final = 7
_REPLICAS_MAX: Final = 9
# So many there are in all, the removed ones included.
_EVER_MAX: Final = 12
_PROMOTES: Final = 0.8
_DIES_BEFORE: Final = 0.3
_LOSES_DISK_BEFORE: Final = 0.15
# Refusals after which a step is tried again: the cluster or a replica is not ready for it.
PASSING: Final = frozenset(
    {
        *TOO_MUCH,
        Reason.REASON_REPLICA_NOT_READY,
        Reason.REASON_QUORUM_AT_RISK,
        Reason.REASON_NOT_PRIMARY,
        Reason.REASON_VIEW_CHANGE,
    }
)
ADDED: Final = "replicas added"
PROMOTED: Final = "replicas promoted"
REMOVED: Final = "replicas removed"
REMOVED_PRIMARY: Final = "primaries removed"
REMOVED_DEAD: Final = "dead replicas removed"
REVIVED: Final = "removed replicas started again"

Call = Callable[[Client], Awaitable[Any]]


def planned_addresses(founders: int) -> list[str]:
    """Return where replicas will serve that come later.

    Clients are given them in time: whoever knows one replica alone is lost when that one is gone.
    """
    return [f"{name_of(number)}:{CLIENT_PORT}" for number in range(founders, _EVER_MAX)]


class StewardStage(Protocol):
    """What a steward needs of a run."""

    book: MemberBook
    replicas: list[WorldReplica]
    world: World

    def add_replica(self) -> WorldReplica:
        """Put a machine into the world; nothing runs on it yet."""
        ...

    def count(self, what: str) -> None:
        """Count what was done."""
        ...


class Steward:
    """One operator. `orders` are what a story wants done; with them alone it does nothing else."""

    def __init__(
        self, seed: int, access: Access, stage: StewardStage, failed: Callable[[str], None]
    ) -> None:
        self.is_ending = False
        self._token = ""
        """In a story: from its beginning, when the cluster was whole."""
        self.orders: deque[Callable[[Steward], Awaitable[None]]] = deque()
        self.refusals: list[str] = []
        """The reasons for which steps were refused, in order."""
        self._random = Random(seed)
        self._access = access
        self._stage = stage
        self._book = stage.book
        self._failed = failed
        self._client: Client | None = None
        self._later: set[asyncio.Task[None]] = set()

    async def run(self, is_busy: bool) -> None:
        """Change members until told to end; in the end nobody runs who was removed."""
        if not is_busy:
            await self._log_in()
        while not self.is_ending or self.orders:
            if self.orders:
                await self.orders[0](self)
                self.orders.popleft()
            elif is_busy:
                await self._pause(_PAUSE_MS)
                await self._random.choice(self._acts())()
            else:
                await asyncio.sleep(_AGAIN_S)
        await asyncio.gather(*self._later)
        await self._disconnect()

    # --- Steps ---

    async def add(self, *, starts: bool = True) -> int:
        """Add a replica, and start it; return its number."""
        replica = self._stage.add_replica()
        told = await self._until_done(lambda client: client.add_replica(replica.peer_address))
        if told.replica_id != replica.number:
            self._failed(f"replica {told.replica_id} was added in place of {replica.number}")
        self._book.added(replica.number)
        self._stage.count(ADDED)
        self._note(f"has added replica {replica.number}: {self._book}")
        if replica.address not in self._access.addresses:
            self._access.addresses.append(replica.address)
        if starts:
            await self._pause(_START_MS)
            self._outside(replica.come_back)
        return replica.number

    async def try_to_add(self, number: int, peer_address: str) -> None:
        """Ask one replica, once, to add one at an address; nobody learns what became of it."""
        request = cluster_pb2.AddReplicaRequest(peer_address=peer_address)
        async with Endpoint(self._stage.replicas[number].address).open() as channel:
            try:
                await unary(channel, request, access_token=self._token, timeout_s=_PATIENCE_S)
            except (Refusal, grpc.aio.AioRpcError) as error:
                self._note(f"hears {error!r}")
            else:
                self._failed(f"a replica was added at {peer_address}")

    async def promote(self, number: int) -> None:
        """Give a standby a vote."""
        await self._until_done(lambda client: client.promote_replica(number))
        self._book.promoted(number)
        self._stage.count(PROMOTED)
        self._note(f"has promoted replica {number}: {self._book}")

    async def remove(self, number: int) -> None:
        """Remove a replica, and return once the cluster goes on without it."""
        replica = self._stage.replicas[number]
        was = REMOVED_PRIMARY if replica.is_primary else REMOVED
        await self._until_done(lambda client: client.remove_replica(number))
        self._book.removed(number)
        self._stage.count(was)
        self._note(f"has removed replica {number}: {self._book}")
        if replica.address in self._access.addresses:
            self._access.addresses.remove(replica.address)
        await self._until_gone(number)

    async def stop(self, number: int, after_ms: int) -> None:
        """Stop a replica that was removed, for good."""
        await asyncio.sleep(after_ms / 1_000)
        self._outside(self._stage.replicas[number].retire)

    async def revive(self, number: int, lasts_ms: int) -> None:
        """Start the directory of a removed replica again, which nobody should do."""
        replica = self._stage.replicas[number]
        self._stage.count(REVIVED)
        replica.is_retired = False
        self._outside(replica.come_back)
        await asyncio.sleep(lasts_ms / 1_000)
        if replica.is_primary:
            self._failed(f"replica {number} was removed, and leads")
        self._outside(replica.retire)

    # --- What it does by itself ---

    def _acts(self) -> Sequence[Callable[[], Awaitable[None]]]:
        """Return what is possible now; growing is as likely as shrinking."""
        acts: list[Callable[[], Awaitable[None]]] = []
        if len(self._book.members) < _REPLICAS_MAX and len(self._stage.replicas) < _EVER_MAX:
            acts.append(self._grow)
        if self._promotable():
            acts.append(self._promote)
        if self._removable():
            acts.append(self._shrink)
        if self._retired():
            acts.append(self._revive)
        return acts or [lambda: self._pause(_PAUSE_MS)]

    async def _grow(self) -> None:
        number = await self.add()
        if self._random.random() < _LOSES_DISK_BEFORE:
            await self._pause(_START_MS)
            self._outside(self._stage.replicas[number].give_empty_disk)
            # No vote may go to the disk that is gone: of two voters one could never admit it.
            await asyncio.sleep(FRESH_REPORT_MS / 1_000 + _AGAIN_S)
        if self._random.random() < _PROMOTES and number in self._promotable():
            await self.promote(number)

    async def _promote(self) -> None:
        await self.promote(self._random.choice(self._promotable()))

    async def _shrink(self) -> None:
        number = self._random.choice(self._removable())
        rest = [each for each in self._book.voters if each != number]
        has_vote = number in self._book.voters
        may_die = not has_vote or self._bears_death(number)
        replica = self._stage.replicas[number]
        if may_die and self._random.random() < _DIES_BEFORE:
            self._stage.count(REMOVED_DEAD)
            self._outside(replica.retire)
            await self._pause(_START_MS)
        assert rest, "a voter stays"
        await self.remove(number)
        self._soon(self.stop(number, self._random.randint(*_STOP_MS)))

    async def _revive(self) -> None:
        number = self._random.choice(self._retired())
        self._soon(self.revive(number, self._random.randint(*_REVIVED_MS)))

    def _promotable(self) -> list[int]:
        voters = self._book.voters
        if len(voters) >= VOTERS_MAX:
            return []
        return [each for each in self._book.standbys if self._book.bears([*voters, each])]

    def _removable(self) -> list[int]:
        voters = self._book.voters
        without = {each: [other for other in voters if other != each] for each in voters}
        bearing = [each for each in voters if without[each] and self._book.bears(without[each])]
        return [*self._book.standbys, *bearing]

    def _bears_death(self, number: int) -> bool:
        is_victim = number in self._book.victims
        return self._book.bears(self._book.voters, dead=0 if is_victim else 1) and (
            len(self._book.voters) > 2
        )

    def _retired(self) -> list[int]:
        gone = [each for each in self._stage.replicas if each.number not in self._book.members]
        return [each.number for each in gone if each.is_retired]

    # --- Calls ---

    async def _until_gone(self, number: int) -> None:
        """Wait until those who stay say that they go on without a replica."""
        while True:
            told = await self._until_done(_status)
            roles = {each.replica_id: each.role for each in told.replicas}
            if roles.get(number) in (None, cluster_pb2.REPLICA_ROLE_UNSPECIFIED):
                return
            await asyncio.sleep(_AGAIN_S)

    async def _until_done(self, call: Call) -> Any:
        """Call until that is answered."""
        while True:
            try:
                return await call(await self._connected())
            except Refusal as refusal:
                self._refused(refusal)
            except (ClientError, grpc.aio.AioRpcError, TimeoutError) as error:
                self._note(f"hears {error!r}")
                await self._disconnect()
            await asyncio.sleep(_AGAIN_S)

    async def _log_in(self) -> None:
        identity = AccessTokenSource(Credentials(ROOT_USERNAME, self._access.password))
        async with Endpoint(self._access.addresses[0]).open() as channel:
            self._token = await identity.access_token(channel)

    def _refused(self, refusal: Refusal) -> None:
        self.refusals.append(refusal.name)
        self._note(f"is told {refusal.name}: {refusal.message}")
        is_unknown = refusal.details.get("outcome") == "unknown"
        if not is_unknown and refusal.reason not in PASSING | NOT_SERVED:
            self._failed(f"the steward was told {refusal.name}: {refusal.message}")
            raise refusal

    def _note(self, what: str) -> None:
        self._stage.world.schedule.note("admin", what)

    async def _connected(self) -> Client:
        if self._client is None:
            self._client = await connect(
                self._random.sample(self._access.addresses, len(self._access.addresses)),
                username=ROOT_USERNAME,
                password=self._access.password,
                connect_timeout_s=_CONNECT_PATIENCE_S,
                timeout_s=_PATIENCE_S,
                register_session=False,
            )
        return self._client

    async def _disconnect(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.close(end_session=False)

    # --- Time ---

    async def _pause(self, bounds_ms: tuple[int, int]) -> None:
        await asyncio.sleep(self._random.randint(*bounds_ms) / 1_000)

    def _outside(self, doing: Callable[[], None]) -> None:
        """Have something done to machines once this process has ended its turn."""
        self._stage.world.schedule.after(0, doing)

    def _soon(self, doing: Any) -> None:
        task = asyncio.create_task(doing)
        self._later.add(task)
        task.add_done_callback(self._later.discard)


async def _status(client: Client) -> cluster_pb2.GetStatusResponse:
    return await client.status()


class Stewards:
    """The process of a run's steward, if it has one."""

    def __init__(self, stage: StewardStage, failed: Callable[[str], None]) -> None:
        self.steward: Steward | None = None
        self._stage = stage
        self._failed = failed
        self._process: WorldProcess | None = None

    def begin(self, access: Access, *, is_busy: bool) -> None:
        """Start it. If it is not busy it does only what a story orders."""
        world = self._stage.world
        seed = world.schedule.random.getrandbits(64)
        steward = self.steward = Steward(seed, access, self._stage, self._failed)
        self._process = world.process("admin", world.machine("10.1.3.1"))
        self._process.ended = telling(self._failed, "the steward")
        self._process.run(lambda: steward.run(is_busy))

    def end(self) -> None:
        """Let it finish what is under way."""
        if self.steward is not None:
            self.steward.is_ending = True

    @property
    def are_over(self) -> bool:
        """Whether it has ended."""
        return self._process is None or not self._process.is_alive
