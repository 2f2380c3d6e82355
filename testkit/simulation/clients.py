"""Clients: each has one request or read under way and repeats it until some replica answers."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Any, Final

from testkit.simulation.application import Load, SimulatedRequest
from testkit.simulation.network import CLIENT_ADDRESS

if TYPE_CHECKING:
    from testkit.simulation.simulation import Simulation

TIMEOUT_MS: Final = 400
ASK_AGAIN_MS: Final = 20
# So many requests follow each other at once, on average, where a seed has bursts.
BURST: Final = 8


@dataclass(frozen=True, slots=True)
class Read:
    """A linearizable read. Reads are numbered downward from -1."""

    client: int
    number: int
    query: Any


@dataclass(frozen=True, slots=True)
class Answer:
    """The reply to a request, or what was read right after entry `op`."""

    number: int
    reply: Any
    op: int


@dataclass(frozen=True, slots=True)
class NotServed:
    """The replica does not serve clients now; `primary` is the one to ask, if it is known."""

    number: int
    primary: int | None


class Client:
    """One client, with one request under way."""

    def __init__(self, world: Simulation, index: int, load: Load, random: Random) -> None:
        self.address = CLIENT_ADDRESS + index
        self.pending: SimulatedRequest | Read | None = None
        self._world = world
        self._load = load
        self._random = random
        self._requests = 0
        self._reads = 0
        self._target = random.randrange(world.options.machine_count)
        self._sent = 0
        self._refused: set[int] = set()
        """Who refused since the last answer; all of them may be asked again after all others."""

    def start(self) -> None:
        """Begin the next request or read, unless the load is over."""
        if self.pending is not None or self._world.is_load_over:
            return
        if self._random.randrange(100) < self._world.options.reads_percent:
            self._reads += 1
            self.pending = Read(self.address, -self._reads, self._load.query())
            # Every replica answers reads.
            self._target = self._random.randrange(self._world.options.replica_count)
        else:
            self._requests += 1
            self.pending = self._load.request(self.address, self._requests)
        self._world.asked(self.pending)
        self._send()

    def _send(self) -> None:
        if self.pending is None:
            return
        self._sent += 1
        sent = self._sent
        self._world.network.send(self.address, self._target, self.pending)
        self._world.schedule.after(TIMEOUT_MS, lambda: self._timed_out(sent))

    def _timed_out(self, sent: int) -> None:
        if sent == self._sent and self.pending is not None:
            self._world.marks.hit("client timeout")
            self._target = (self._target + 1) % self._world.options.machine_count
            self._send()

    def received(self, answer: Answer | NotServed) -> None:
        """Take an answer; late ones to what was answered before are ignored."""
        if self.pending is None or answer.number != self.pending.number:
            self._world.marks.hit("client late answer")
        elif isinstance(answer, NotServed):
            self._ask_elsewhere(answer.primary)
        else:
            self._answered(answer)

    def _ask_elsewhere(self, hint: int | None) -> None:
        count = self._world.options.machine_count
        # Two who are cut off together point to each other for good: nobody is asked twice in a row.
        self._refused.add(self._target)
        if len(self._refused) >= count:
            self._refused.clear()
        is_new = hint is not None and hint != self._target and hint not in self._refused
        self._target = hint if is_new and hint is not None else (self._target + 1) % count
        self._sent += 1
        sent = self._sent

        def again() -> None:
            if sent == self._sent:
                self._send()

        self._world.schedule.after(ASK_AGAIN_MS, again)

    def _answered(self, answer: Answer) -> None:
        pending, self.pending = self.pending, None
        self._refused.clear()
        assert pending is not None
        self._sent += 1
        self._world.trace.note(f"c{self.address}", "answered", answer)
        if isinstance(pending, Read):
            self._world.checks.read(pending, answer)
        else:
            self._world.checks.acknowledged(pending, answer)
            self._load.answered(pending, answer.reply)
        self._world.schedule.after(self._think_ms(), self.start)

    def _think_ms(self) -> int:
        """How long the client waits before it goes on; bursts are followed by long pauses."""
        most = 2 * self._world.options.think_ms
        is_bursty = self._world.options.is_bursty
        is_in_burst = is_bursty and self._random.randrange(BURST) > 0
        if is_in_burst:
            return 0
        think_ms = self._random.randint(0, most * (BURST if is_bursty else 1))
        return 0 if self._world.schedule.now_ms < self._world.rush_until_ms else think_ms
