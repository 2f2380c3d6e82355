"""The simulated network: messages are lost, repeated, delayed, held up, and cut off.

Links are directed, so that a cut can be of one direction alone. Nothing is kept in order: every
message draws its own delay.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random
from typing import Any, Final

from testkit.partitions import Link
from testkit.simulation.marks import Marks
from testkit.simulation.options import FaultKind, Options
from testkit.simulation.schedule import Schedule

Deliver = Callable[[int, int, Any], None]

CLIENT_ADDRESS: Final = 100
"""Clients have addresses from here on; replicas have their indexes."""

# What a path holds on to; beyond it messages are lost, as in a switch that is full.
PATH_MESSAGES_MAX: Final = 60
REPEAT_WITHIN_MS: Final = 300
# One message in so many takes a detour, where delays are a fault of the seed.
DETOUR_ONE_IN: Final = 20
DETOUR_MS_MAX: Final = (400, 4_000)
# One message between replicas in so many reaches another one as well, where that is a fault.
MISROUTED_ONE_IN: Final = 60
# And one in so many comes once more from a cluster that is none of theirs.
STRANGER_ONE_IN: Final = 60
# One log in a vote or a StartView in so many loses an entry on its way, where that is a fault.
HOLED_LOG_ONE_IN: Final = 8
STRANGE_CLUSTER_ID: Final = bytes(15) + b"\xee"
# So many in a hundred are lost of the kind that a seed carries poorly.
POORLY_CARRIED_PERCENT: Final = 60
# What comes once more was sent within this time: as late as messages on a detour may be.
ECHO_AGE_MS_MAX: Final = DETOUR_MS_MAX[-1]
ECHO_WITHIN_MS: Final = 40


class Network:
    """All links between all addresses."""

    def __init__(
        self, options: Options, schedule: Schedule, random: Random, marks: Marks, deliver: Deliver
    ) -> None:
        self._options = options
        self._schedule = schedule
        self._random = random
        self._marks = marks
        self._deliver = deliver
        # What is drawn from this one leaves all other messages as they were.
        self._random_apart = Random(f"{options.seed} network apart")
        self._holes = Random(f"{options.seed} holed logs")
        self._last_sent: dict[tuple[int, int, type], tuple[int, Any]] = {}
        """The last message of each kind by target and sender, with the time it set out."""
        self._in_flight: dict[Link, int] = {}
        self._cut: set[Link] = set()
        self._clogged_until_ms: dict[Link, int] = {}
        self._is_healed = False

    def send(self, source: int, target: int, message: Any) -> None:
        """Let a message set out; it arrives once, more often, or never."""
        if self._is_lost(source, target) or self._is_poorly_carried(message):
            return
        message = self._with_a_hole(message)
        if max(source, target) < CLIENT_ADDRESS:
            self._last_sent[target, source, type(message)] = (self._schedule.now_ms, message)
        self._travel(source, target, message, self._delay_ms())
        if self._hits(self._options.duplication_percent):
            self._marks.hit("fault duplication")
            self._travel(
                source,
                target,
                message,
                self._delay_ms() + self._random.randint(0, REPEAT_WITHIN_MS),
            )
        if max(source, target) < CLIENT_ADDRESS and not self._is_healed:
            self._confuse(source, message)

    def _with_a_hole(self, message: Any) -> Any:
        """Return the message, or now and then one whose log lacks an entry, as from bad memory."""
        headers = getattr(message, "headers", ())
        above = [header for header in headers if header.op > message.commit]
        is_drawn = FaultKind.HOLED_LOG in self._options.faults and not self._is_healed
        if not above or not is_drawn or self._holes.randrange(HOLED_LOG_ONE_IN):
            return message
        self._marks.hit("fault holed_log")
        left_out = self._holes.choice(above)
        return replace(message, headers=tuple(each for each in headers if each is not left_out))

    def _confuse(self, source: int, message: Any) -> None:
        """Deliver a message to the wrong replica, or as one of another cluster."""
        faults = self._options.faults
        if FaultKind.MISROUTED in faults and self._random.randrange(MISROUTED_ONE_IN) == 0:
            self._marks.hit("fault misrouted")
            target = self._random.randrange(self._options.machine_count)
            self._travel(source, target, message, self._delay_ms())
        if FaultKind.STRANGER in faults and self._random.randrange(STRANGER_ONE_IN) == 0:
            self._marks.hit("fault stranger")
            target = self._random.randrange(self._options.machine_count)
            strange = replace(message, cluster_id=STRANGE_CLUSTER_ID)
            self._travel(source, target, strange, self._delay_ms())

    def _is_lost(self, source: int, target: int) -> bool:
        if self._hits(self._options.loss_percent):
            self._marks.hit("fault loss")
            return True
        if self._in_flight.get((source, target), 0) >= PATH_MESSAGES_MAX:
            self._marks.hit("network path full")
            return True
        return False

    def _is_poorly_carried(self, message: Any) -> bool:
        if self._is_healed or type(message).__name__ != self._options.poorly_carried:
            return False
        is_lost = self._random_apart.randrange(100) < POORLY_CARRIED_PERCENT
        self._marks.hit("fault loss", int(is_lost))
        return is_lost

    def send_report(self, source: int, target: int, report: Any) -> None:
        """Let a report of the shell set out: it is lost and late like any other message."""
        random, self._random = self._random, self._random_apart
        self.send(source, target, report)
        self._random = random

    def echo(self, target: int) -> None:
        """Deliver half of the recent messages to a replica again, the last one of each kind."""
        for (to, source, _), (sent_ms, message) in list(self._last_sent.items()):
            is_late = self._schedule.now_ms - sent_ms > ECHO_AGE_MS_MAX
            if to == target and not is_late and self._random_apart.random() < 0.5:
                delay_ms = self._random_apart.randint(1, ECHO_WITHIN_MS)
                self._marks.hit("echo")
                self._travel(source, target, message, delay_ms)

    def _hits(self, percent: int) -> bool:
        return not self._is_healed and self._random.randrange(100) < percent

    def _delay_ms(self) -> int:
        delay_ms = 1 + int(self._random.expovariate(1 / self._options.delay_ms))
        is_slow = FaultKind.DELAY in self._options.faults and not self._is_healed
        if is_slow and self._random.randrange(DETOUR_ONE_IN) == 0:
            self._marks.hit("fault delay")
            delay_ms += self._random.randint(1, self._random.choice(DETOUR_MS_MAX))
        return delay_ms

    def _travel(self, source: int, target: int, message: Any, delay_ms: int) -> None:
        link = (source, target)
        held_ms = self._clogged_until_ms.get(link, 0) - self._schedule.now_ms
        self._in_flight[link] = self._in_flight.get(link, 0) + 1
        self._schedule.after(delay_ms + max(0, held_ms), lambda: self._arrive(link, message))

    def _arrive(self, link: Link, message: Any) -> None:
        self._in_flight[link] -= 1
        if link in self._cut:
            self._marks.hit("network message cut off")
            return
        self._deliver(*link, message)

    # --- Faults ---

    def cut(self, links: Sequence[Link]) -> None:
        """Let nothing through on these links, in place of those cut before."""
        self._cut = set(links)

    def clog(self, links: Sequence[Link], until_ms: int) -> None:
        """Hold back what is sent on these links, and let it all go at once."""
        self._clogged_until_ms.update(dict.fromkeys(links, until_ms))

    def is_cut(self, source: int, target: int) -> bool:
        """Whether nothing gets through from one to the other."""
        return (source, target) in self._cut

    def heal(self, links: Sequence[Link] = ()) -> None:
        """From now on every message arrives, once and soon, but for those on `links`."""
        self._is_healed = True
        self._cut = set(links)
        self._clogged_until_ms.clear()
