"""Commands that machines ask the primary to sequence: sent when due, one of each at a time.

The commands are conditional, so a stale one is a no-op. They are soft state: a new primary asks
every stage again, and a primary also asks when a service connects or the feature level is raised. A
repeated command may have other content: a Sweep names the place where a stage asked for it. Each
Sweep asks for the next one, so two Sweeps would continue side by side as long as work is left. So
one command of such a method (`one_at_a_time` in its options) is pending at a time, whatever its
content. A waiting command replaces later ones. While one is being sequenced, the newest of the
others follows it.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol, TypeAlias

from coordinator.base.clock import wall_clock_us
from coordinator.replica.batcher import LooseCommand, Reply
from viewstamp.api.domain.v1 import domain_service_pb2 as domain_pb2
from viewstamp.errors import Refusal
from viewstamp.limits import SYSTEM_USER_ID

RETRY_DELAY_MS: Final = 100
# Of all due proposals this many are sent at a time, with the loop turning in between: a new primary
# is told all pending ones at once.
SENT_TOGETHER_MAX: Final = 256
# A timer far ahead is checked again after this long, so that clock changes do no harm.
SLEEP_MAX_MS: Final = 60_000


# What is pending once: a code with its request, which is empty where one request stands for all.
Key: TypeAlias = tuple[int, bytes]


@dataclass(frozen=True, slots=True)
class Again:
    """A proposal made while another of its key was being sequenced."""

    request: bytes
    due: int


class ProposalSequencer(Protocol):
    """The driver as seen from here."""

    def submit(self, waiting: LooseCommand) -> None:
        """Queue a command for the log. Raises Refusal."""


class Rules(Protocol):
    """What is known about codes: the routes as seen from here."""

    def may_enter(self, code: int) -> bool:
        """Return whether the feature level in force allows a code."""
        ...

    def is_one_at_a_time(self, code: int) -> bool:
        """Return whether one request of a code stands for every other."""
        ...


class Proposals:
    """Pending proposals by due time."""

    def __init__(
        self,
        sequencer: ProposalSequencer,
        rules: Rules,
        clock_us: Callable[[], int] = wall_clock_us,
    ) -> None:
        """Drop codes that the level does not allow: stages are asked again once it is raised."""
        self._sequencer = sequencer
        self._rules = rules
        self._clock_us = clock_us
        self._pending: set[Key] = set()
        # Of those, the keys being sequenced, and what was proposed again meanwhile.
        self._sent: dict[Key, Again | None] = {}
        # Proposals sent in an earlier term settle later, and are not in `_sent`.
        self._term = 0
        self._due: list[tuple[int, int, bytes, Key]] = []
        self._timer: asyncio.TimerHandle | None = None
        self.active = False

    def __len__(self) -> int:
        return len(self._pending)

    def activate(self) -> None:
        """Begin to propose: this replica is primary and has applied its log."""
        self.active = True

    def deactivate(self) -> None:
        """Propose nothing more: another replica is primary, or will be."""
        self.active = False
        self._term += 1
        self._pending.clear()
        self._sent.clear()
        self._due.clear()
        self._schedule()

    def add(self, proposal: domain_pb2.Proposal) -> None:
        """Take a proposal; drop one that waits already, or comes from a replay."""
        self.propose(proposal.code, proposal.request, proposal.due)

    def propose(self, code: int, request: bytes, due: int) -> None:
        """Sequence a command at log time `due` (microseconds), unless it already waits.

        A proposal made while the same command is being sequenced follows once that is settled. The
        machine asks again because the first came too early, as after a backward step of clocks, or
        because there is more to do.
        """
        if not self.active or not self._rules.may_enter(code):
            return
        key = self._key(code, request)
        if key in self._sent:
            known = self._sent[key]
            self._sent[key] = Again(request, due if known is None else min(due, known.due))
        if key in self._pending:
            return
        self._pending.add(key)
        heapq.heappush(self._due, (due, code, request, key))
        if self._due[0][0] == due:  # else the timer is already right
            self._schedule()

    def _key(self, code: int, request: bytes) -> Key:
        return code, b"" if self._rules.is_one_at_a_time(code) else request

    def _schedule(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._due:
            delay_ms = max(0, (self._due[0][0] - self._clock_us()) // 1000)
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(min(delay_ms, SLEEP_MAX_MS) / 1000, self._send_due)

    def _send_due(self) -> None:
        self._timer = None
        now_us = self._clock_us()
        for _ in range(SENT_TOGETHER_MAX):
            if not self._due or self._due[0][0] > now_us:
                break
            _, code, request, key = heapq.heappop(self._due)
            self._send(code, request, key)
        self._schedule()

    def _send(self, code: int, request: bytes, key: Key) -> None:
        future: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        term = self._term
        future.add_done_callback(lambda done: self._settled(request, key, done, term))
        command = LooseCommand(code, request, SYSTEM_USER_ID, 0, "", future)
        self._sent[key] = None
        try:
            self._sequencer.submit(command)
        except Refusal as refusal:
            future.set_exception(refusal)

    def _settled(self, request: bytes, key: Key, future: asyncio.Future[Reply], term: int) -> None:
        failure = future.exception()  # read in any case: else it is logged as never retrieved
        if term != self._term:
            return  # every stage was asked again, and its answers are under way by themselves
        self._pending.discard(key)
        again = self._sent.pop(key, None)
        code, _ = key
        soon = self._clock_us() + RETRY_DELAY_MS * 1000
        if self.active and isinstance(failure, Refusal):
            # Not sequenced, so not decided: retry a little later, which also covers `again`.
            self.propose(code, request, soon)
        elif again is not None:
            is_next_step = again.request != request
            self.propose(code, again.request, again.due if is_next_step else max(again.due, soon))
