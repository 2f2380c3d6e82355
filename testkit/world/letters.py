"""What may happen to a message between replicas: one function for each kind of trouble.

A trouble takes a letter and returns what becomes of it: nothing, itself, another one, or several.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any, Final

from coordinator.peers.codec import Encoder, decode_packet
from coordinator.peers.routing import ROUTES, Receiver
from coordinator.vsr import messages as core

DELAY_MS: Final = (1, 20)
REPEATED_WITHIN_MS: Final = 300
# A message on a detour may arrive long after its view has ended.
DETOUR_MS_MAX: Final = (400, 4_000)
LOSS_PERCENT: Final = (1, 25)
REPEATED_PERCENT: Final = (1, 30)
LATE_PERCENT: Final = (5, 50)
MISROUTED_ONE_IN: Final = 20
STRANGE_ONE_IN: Final = 20
HOLED_ONE_IN: Final = 3
POORLY_CARRIED_PERCENT: Final = 60
POORLY_CARRIED: Final = (
    core.StartViewChangeMessage,
    core.DoViewChangeMessage,
    core.StartViewMessage,
    core.RequestStartViewMessage,
    core.RequestPrepareMessage,
    core.RepairMessage,
    core.PrepareOkMessage,
)
OF_THE_CORE: Final = frozenset(kind for kind, taker in ROUTES if taker is Receiver.CORE)


@dataclass(frozen=True, slots=True)
class Letter:
    """An encoded message of one kind on its way.

    `delay_ms` is None where the product's own connection carries it. A strange letter says that it
    is of another cluster.
    """

    source: int
    target: int
    kind: type
    data: bytes
    delay_ms: int | None = None
    is_strange: bool = False

    def later(self, delay_ms: int) -> Letter:
        """Return it so much later, and apart from the connection."""
        return replace(self, delay_ms=(self.delay_ms or 0) + delay_ms)


@dataclass(frozen=True, slots=True)
class PostOffice:
    """What troubles know: the members of the cluster, its id, and how long they last."""

    random: Random
    members: Sequence[int]
    cluster_id: bytes
    left_ms: Callable[[], int]
    count: Callable[[str], None]


Trouble = Callable[[Letter], list[Letter]]


def _lost(office: PostOffice) -> Trouble:
    percent = office.random.randint(*LOSS_PERCENT)

    def carry(letter: Letter) -> list[Letter]:
        if office.random.randrange(100) >= percent:
            return [letter]
        office.count("message lost")
        return []

    return carry


def _poorly_carried(office: PostOffice) -> Trouble:
    kind = office.random.choice(POORLY_CARRIED)

    def carry(letter: Letter) -> list[Letter]:
        if letter.kind is not kind or office.random.randrange(100) >= POORLY_CARRIED_PERCENT:
            return [letter]
        office.count("message of one kind lost")
        return []

    return carry


def _repeated(office: PostOffice) -> Trouble:
    percent = office.random.randint(*REPEATED_PERCENT)

    def carry(letter: Letter) -> list[Letter]:
        if office.random.randrange(100) >= percent:
            return [letter]
        office.count("message repeated")
        return [letter, letter.later(office.random.randint(1, REPEATED_WITHIN_MS))]

    return carry


def _late(office: PostOffice) -> Trouble:
    percent = office.random.randint(*LATE_PERCENT)

    def carry(letter: Letter) -> list[Letter]:
        if office.random.randrange(100) >= percent:
            return [letter]
        office.count("message late")
        return [letter.later(office.random.randint(1, office.random.choice(DETOUR_MS_MAX)))]

    return carry


def _clogged(office: PostOffice) -> Trouble:
    """Hold everything back until the trouble ends, and then let it go at once."""

    def carry(letter: Letter) -> list[Letter]:
        office.count("message held back")
        return [letter.later(max(1, office.left_ms()))]

    return carry


def _misrouted(office: PostOffice) -> Trouble:
    def carry(letter: Letter) -> list[Letter]:
        if letter.kind not in OF_THE_CORE or office.random.randrange(MISROUTED_ONE_IN):
            return [letter]
        office.count("message misrouted")
        astray = replace(letter, target=office.random.choice(office.members))
        return [letter, astray.later(office.random.randint(*DELAY_MS))]

    return carry


def _strange(office: PostOffice) -> Trouble:
    def carry(letter: Letter) -> list[Letter]:
        if letter.kind not in OF_THE_CORE or office.random.randrange(STRANGE_ONE_IN):
            return [letter]
        office.count("message of another cluster")
        astray = replace(letter, target=office.random.choice(office.members), is_strange=True)
        return [letter, astray.later(office.random.randint(*DELAY_MS))]

    return carry


def _holed(office: PostOffice) -> Trouble:
    def carry(letter: Letter) -> list[Letter]:
        if letter.kind not in (core.DoViewChangeMessage, core.StartViewMessage):
            return [letter]
        (message,) = decode_packet(letter.data, office.cluster_id, letter.source)
        return [replace(letter, data=_with_a_hole(message, office) or letter.data)]

    return carry


def _with_a_hole(message: Any, office: PostOffice) -> bytes:
    """Return a vote or a log without one of its entries, as from bad memory; empty mostly."""
    above = [header for header in message.headers if header.op > message.commit]
    if not above or office.random.randrange(HOLED_ONE_IN):
        return b""
    office.count("log with a hole")
    left_out = office.random.choice(above)
    holed = replace(message, headers=tuple(h for h in message.headers if h is not left_out))
    return Encoder(office.cluster_id, message.from_replica).encode(holed).data


def swallowed(count: Callable[[str], None], kinds: frozenset[type] = frozenset()) -> Trouble:
    """Return the loss of all messages of some kinds, or of all kinds, on connections that live."""

    def carry(letter: Letter) -> list[Letter]:
        if kinds and letter.kind not in kinds:
            return [letter]
        count("message lost")
        return []

    return carry


TROUBLES: Final[Mapping[str, Callable[[PostOffice], Trouble]]] = {
    "lost_messages": _lost,
    "poorly_carried": _poorly_carried,
    "repeated_messages": _repeated,
    "late_messages": _late,
    "clog": _clogged,
    "misrouted": _misrouted,
    "stranger": _strange,
    "holed_log": _holed,
}
COUNTED: Final = (
    "message lost",
    "message of one kind lost",
    "message repeated",
    "message late",
    "message held back",
    "message misrouted",
    "message of another cluster",
    "log with a hole",
    "message once more after a start",
    "hello of another cluster refused",
)
