"""Clients that use the whole interface, well and badly: wanderers as users, operators as root.

What they may be told is judged loosely: no answer that says that the cluster itself is at fault,
no breach of the protocol, and the same answer to a request that is repeated.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from random import Random
from typing import TYPE_CHECKING, Any, Final

import grpc
import grpc.aio

from testkit.world.process import telling
from testkit.world.requests import Requests
from testkit.world.watched import WorldTelemetry
from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.api.users.v1 import users_pb2
from viewstamp.client import Client, connect
from viewstamp.client.errors import ClientError, ProtocolError
from viewstamp.errors import REASONS, Refusal
from viewstamp.limits import ROOT_USERNAME

if TYPE_CHECKING:
    from testkit.world.clients import Access
    from testkit.world.process import WorldProcess
    from testkit.world.world import World

PASSWORD: Final = "correct horse"
# How long a caller pauses at most between two acts.
_PAUSE_MS: Final = (20, 100, 400)
_PATIENCE_S: Final = (0.2, 1.0, 8.0)
_CONNECT_PATIENCE_S: Final = 20.0
_ACT_S_MAX: Final = 15.0
_ACTS_IN_A_LIFE: Final = (10, 40)
_VANISHES_ONE_IN: Final = 5
FAULTS_OF_A_CLUSTER: Final = frozenset(
    {grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN, grpc.StatusCode.DATA_LOSS}
)
# Damage of stored data is found where a run damages it, and is told.
_TOLD_OF_DAMAGE: Final = frozenset({Reason.REASON_SNAPSHOT_DAMAGED})
# How the library calls a message that could not be written because the call had ended.
_WRITE_FAILED: Final = "Internal error from Core"
GLOBAL_GRANTS: Final = tuple(f.name for f in users_pb2.GlobalPermissions.DESCRIPTOR.fields)

Act = Callable[["Wanderer"], Awaitable[object]]


class Wanderer:
    """One caller. `client` is its present connection, `requests` makes what it sends."""

    client: Client
    token: str = ""
    username: str = ROOT_USERNAME
    password: str = ""
    doing: str = "live"

    def __init__(
        self,
        name: str,
        seed: int,
        access: Access,
        failed: Callable[[str], None],
        marks: Counter[str],
        *,
        is_root: bool,
    ) -> None:
        self.name = name
        self.random = Random(seed)
        self.requests = Requests(self.random)
        self.access = access
        self.addresses = list(access.addresses)
        self.is_ending = False
        self.fail = failed
        self._marks = marks
        # Every second one traces its calls.
        self._telemetry = WorldTelemetry(name, failed) if self.random.randrange(2) else None
        self._is_root = is_root
        self._lives = 0

    async def run(self, acts: Sequence[tuple[int, Act]]) -> None:
        """Live, and live again, until told to end."""
        while not self.is_ending:
            self._lives += 1
            self.doing = "live"
            await self.tried(self._live(acts), None)
            await self.pause()

    async def _live(self, acts: Sequence[tuple[int, Act]]) -> None:
        username, password = ROOT_USERNAME, self.access.password
        if not self._is_root:
            username, password = f"{self.name}-{self._lives}", PASSWORD
            await self._make_user(username)
        self.username, self.password, self.token = username, password, ""
        self.client = await self.connected(username, password)
        try:
            await self._act_often(acts)
        finally:
            await self.client.close(end_session=self.random.randrange(_VANISHES_ONE_IN) > 0)

    async def _act_often(self, acts: Sequence[tuple[int, Act]]) -> None:
        weights = [weight for weight, _ in acts]
        for _ in range(self.random.randint(*_ACTS_IN_A_LIFE)):
            if self.is_ending:
                return
            act = self.random.choices([act for _, act in acts], weights)[0]
            self.doing = getattr(act, "__name__", "act")
            await self.tried(act(self), _ACT_S_MAX)
            await self.pause()

    async def pause(self) -> None:
        """Think."""
        await asyncio.sleep(self.random.randint(0, self.random.choice(_PAUSE_MS)) / 1_000)

    async def connected(self, username: str, password: str) -> Client:
        """Return a new connection. Raises what `connect` raises."""
        self.random.shuffle(self.addresses)
        return await connect(
            list(self.addresses),
            username=username,
            password=password,
            timeout_s=self.random.choice(_PATIENCE_S),
            connect_timeout_s=_CONNECT_PATIENCE_S,
            register_session=self.random.randrange(4) > 0,
            telemetry=self._telemetry,
        )

    async def _make_user(self, name: str) -> None:
        """Make the user of this life; it may do everything, or what is drawn."""
        may_all = self.random.randrange(2) == 0
        grants = {grant: may_all or self.random.randrange(3) == 0 for grant in GLOBAL_GRANTS}
        permissions = users_pb2.Permissions()
        getattr(permissions, "global").MergeFrom(users_pb2.GlobalPermissions(**grants))
        async with await self.connected(ROOT_USERNAME, self.access.password) as root:
            await root.users.create(name, PASSWORD, permissions=permissions)

    # --- Judging ---

    async def tried(self, doing: Awaitable[Any], limit_s: float | None) -> Any:
        """Return an answer, None for a failure that a caller has to live with."""
        try:
            async with asyncio.timeout(limit_s):
                answer = await doing
        except Refusal as refusal:
            self._mark(refusal.name)
            if is_fault(refusal):
                self.fail(f"{self.name} was told {refusal.name}: {refusal.message}")
        except grpc.aio.AioRpcError as error:
            self._mark(error.code().name)
            if error.code() in FAULTS_OF_A_CLUSTER and error.details() != _WRITE_FAILED:
                self.fail(f"{self.name} was told {error.code().name}: {error.details()}")
        except ProtocolError as error:
            self.fail(f"{self.name} heard what the protocol does not allow: {error}")
        except (ClientError, TimeoutError, EOFError, asyncio.InvalidStateError) as error:
            self._mark(type(error).__name__)
        else:
            self._mark("done")
            return answer
        return None

    def _mark(self, outcome: str) -> None:
        """Count what came of a try."""
        self._marks[f"visitors: {self.doing}: {outcome}"] += 1


def is_fault(refusal: Refusal) -> bool:
    """Whether a refusal says that the cluster is at fault."""
    code, _ = REASONS.get(refusal.reason, (grpc.StatusCode.UNKNOWN.value[0], None))
    faults = {each.value[0] for each in FAULTS_OF_A_CLUSTER}
    return code in faults and refusal.reason not in _TOLD_OF_DAMAGE


class Wanderers:
    """The processes of a run that wander. `failed` is told what they should not have heard."""

    def __init__(self, world: World, failed: Callable[[str], None]) -> None:
        self._world = world
        self._failed = failed
        self._living: dict[WorldProcess, Wanderer] = {}

    def begin(
        self, access: Access, prefix: str, count: int, acts: Sequence[tuple[int, Act]]
    ) -> None:
        """Start so many; those with the prefix of operators are root."""
        world = self._world
        for number in range(count):
            name = f"{prefix}{number}"
            host = f"10.0.{4 + len(self._living)}.1"
            process = self._world.process(name, self._world.machine(host))
            seed = self._world.schedule.random.getrandbits(64)
            is_root = prefix == OPERATOR
            wanderer = Wanderer(name, seed, access, self._failed, world.marks, is_root=is_root)
            self._living[process] = wanderer
            process.ended = telling(self._failed, f"client {name}")
            process.run(lambda wanderer=wanderer: wanderer.run(acts))  # type: ignore[misc]

    def end(self) -> None:
        """Let each end after its act."""
        for wanderer in self._living.values():
            wanderer.is_ending = True

    @property
    def are_over(self) -> bool:
        """Whether each has ended."""
        return not any(process.is_alive for process in self._living)


WANDERER: Final = "wander"
OPERATOR: Final = "operate"
