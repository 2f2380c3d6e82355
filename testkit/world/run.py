"""One run: a cluster of the real programs, clients of the real library, faults, and judges."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from testkit.oracles import history, wing_gong, witness
from testkit.world.faults import KINDS, Faults
from testkit.world.process import WorldProcess
from testkit.world.replica import WorldReplica
from testkit.world.schedule import NS_PER_S
from testkit.world.workload import READS, REGISTER, Callers, Heard, prepare
from testkit.world.world import World
from viewstamp.api.cluster.v1 import cluster_service_pb2 as cluster_pb2
from viewstamp.client.transport import AccessTokenSource, Credentials, Endpoint, unary
from viewstamp.limits import MIB, ROOT_USERNAME

_START_LIMIT_NS: Final = 60 * NS_PER_S
# How long a healed cluster may take until every call is answered and all replicas agree.
_SETTLE_LIMIT_NS: Final = 180 * NS_PER_S
_LOOK_AGAIN_NS: Final = NS_PER_S
_STATUS_TIMEOUT_S: Final = 5.0


@dataclass(frozen=True)
class WorldOptions:
    """How large a run is. `faults` are the kinds that happen."""

    replicas: int = 3
    clients: int = 3
    callers: int = 2
    keys: int = 3
    seconds: int = 10
    faults: Sequence[str] = KINDS
    flags: Sequence[str] = ("--snapshot-commands=60", f"--snapshot-reserve-bytes={MIB}")


@dataclass
class WorldOutcome:
    """What a run came to."""

    seed: int
    digest: str = ""
    steps: int = 0
    virtual_ms: int = 0
    answered: int = 0
    unknown: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    marks: Counter[str] = field(default_factory=Counter)
    violations: list[str] = field(default_factory=list)


class WorldRun:
    """Runs once. The transcript is in `world.schedule`."""

    def __init__(self, seed: int, options: WorldOptions) -> None:
        self.world = World(seed)
        self.outcome = WorldOutcome(seed)
        self._options = options
        self._heard = Heard()
        self._replicas: list[WorldReplica] = []
        self._statuses: dict[int, cluster_pb2.GetStatusResponse] = {}

    def run(self) -> WorldOutcome:
        """Run, judge, and return what it came to."""
        with self.world.running():
            self._go_through()
        outcome, schedule = self.outcome, self.world.schedule
        outcome.digest, outcome.steps = schedule.digest, schedule.steps
        outcome.virtual_ms = schedule.now_ns * 1_000 // NS_PER_S
        outcome.unknown, outcome.marks = self._heard.unknown, self.world.marks
        self._judge()
        return outcome

    def _go_through(self) -> None:
        options, world = self._options, self.world
        self._replicas = [
            WorldReplica(world, number, options.replicas, options.flags)
            for number in range(options.replicas)
        ]
        for replica in self._replicas:
            replica.start()
        if not self._must(lambda: self._primary() is not None, _START_LIMIT_NS, "no primary"):
            return
        password = self._root_password()
        addresses = [replica.address for replica in self._replicas]
        setup = self._client(0, lambda: prepare(list(addresses), password))
        if not self._must(lambda: not setup.is_alive, _START_LIMIT_NS, "the stream is not made"):
            return
        callers = [self._callers(number, addresses, password) for number in range(options.clients)]
        clients = [process for _, process in callers]
        faults = Faults(world, self._replicas, clients, options.faults)
        if options.faults:
            faults.begin()
        world.run(lambda: False, options.seconds * NS_PER_S)
        faults.end()
        self._heard.healed_ns = world.schedule.now_ns
        self.outcome.faults = faults.counts
        self._settle(callers, password)

    # --- Steps ---

    def _client(self, number: int, main: Callable[[], Coroutine[Any, Any, Any]]) -> WorldProcess:
        machine = self.world.machine(f"10.0.1.{number + 1}")
        process = self.world.process(f"c{number}", machine)
        process.ended = lambda error: self._client_ended(number, error)
        process.run(main)
        return process

    def _client_ended(self, number: int, error: BaseException | None) -> None:
        if error is not None:
            self.outcome.violations.append(f"client {number} failed: {error!r}")

    def _callers(
        self, number: int, addresses: list[str], password: str
    ) -> tuple[Callers, WorldProcess]:
        options = self._options
        seed = self.world.schedule.random.getrandbits(64)
        callers = Callers(self.world, number, seed, self._heard)
        process = self._client(
            number + 1,
            lambda: callers.run(list(addresses), password, options.callers, options.keys),
        )
        return callers, process

    def _settle(self, callers: Sequence[tuple[Callers, WorldProcess]], password: str) -> None:
        """After all faults every call is answered, and every replica has the same state."""
        for each, _ in callers:
            each.is_ending = True
        is_over = self._must(
            lambda: not any(process.is_alive for _, process in callers),
            _SETTLE_LIMIT_NS,
            "not every call came to an end",
        )
        self.outcome.answered = sum(each.answered for each, _ in callers)
        if not is_over:
            return
        for round_number in range(_SETTLE_LIMIT_NS // _LOOK_AGAIN_NS):
            self._ask_statuses(round_number, password)
            if self._agree():
                return
            self.world.run(lambda: False, _LOOK_AGAIN_NS)
        self.outcome.violations.append(f"the replicas do not agree: {self._states()}")

    def _must(self, holds: Callable[[], bool], limit_ns: int, otherwise: str) -> bool:
        held = self.world.run(holds, limit_ns)
        if not held:
            self.outcome.violations.append(f"{otherwise} within {limit_ns // NS_PER_S} s")
        return held

    def _primary(self) -> WorldReplica | None:
        return next((replica for replica in self._replicas if replica.is_primary), None)

    def _root_password(self) -> str:
        primary = self._primary()
        assert primary is not None, "there is a primary"
        found = [primary.root_password, *(replica.root_password for replica in self._replicas)]
        return next(password for password in found if password is not None)

    # --- The state in the end ---

    def _ask_statuses(self, round_number: int, password: str) -> None:
        self._statuses.clear()
        for replica in self._replicas:

            async def ask(replica: WorldReplica = replica) -> None:
                self._statuses[replica.number] = await status_of(replica.address, password)

            machine = self.world.machine(f"10.0.2.{round_number}.{replica.number}")
            asking = self.world.process(f"s{replica.number}", machine)
            asking.run(ask)
            self.world.run(partial(_is_over, asking), _SETTLE_LIMIT_NS)

    def _states(self) -> dict[int, tuple[int, tuple[str, ...]]]:
        return {
            number: (
                status.header.revision,
                (*(service.state_digest for service in status.services), status.sessions_digest),
            )
            for number, status in self._statuses.items()
        }

    def _agree(self) -> bool:
        states = self._states()
        return len(states) == len(self._replicas) and len(set(states.values())) == 1

    # --- Judges ---

    def _judge(self) -> None:
        self.outcome.violations += [
            f"a healthy cluster did not answer {call}" for call in self._heard.neglected
        ]
        for key, operations in sorted(history.by_key(self._heard.operations).items()):
            history.demand_sequential_clients(operations)
            known = _known(operations)
            found = witness.violations(known, REGISTER, reads=READS)
            self.outcome.violations += [f"{key}: {violation}" for violation in found]
            if wing_gong.linearization(operations, REGISTER) is None:
                self.outcome.violations.append(f"{key}: its history is not linearizable")


def _known(operations: Sequence[history.Operation]) -> list[history.Operation]:
    """Return a history for the judge that goes by revisions, empty if a write is not known."""
    is_whole = all(each.is_answered for each in operations)
    return list(operations) if is_whole else []


def _is_over(process: WorldProcess) -> bool:
    return not process.is_alive


async def status_of(address: str, password: str) -> cluster_pb2.GetStatusResponse:
    """Return a replica's own state, with digests."""
    identity = AccessTokenSource(Credentials(ROOT_USERNAME, password))
    async with Endpoint(address).open() as channel:
        token = await identity.access_token(channel)
        request = cluster_pb2.GetStatusRequest(include_digests=True)
        response: cluster_pb2.GetStatusResponse = await unary(
            channel, request, access_token=token, timeout_s=_STATUS_TIMEOUT_S, stale=True
        )
        return response
