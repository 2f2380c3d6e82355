"""What waits to be sent to one replica: two lanes, bounded, packed into few large messages.

Bodies (entries of the log) wait apart from all other messages, so that a heartbeat or a vote never
waits behind more than one packet. When the outbox is full the oldest bodies are given up first,
then the oldest of the rest; the protocol repeats important messages. A packet keeps the order of
sending: needless overtaking makes the receiver ask for entries already on their way.

Without a connection only the newest message of each kind waits: a replica that comes back should
hear the present state, not the past.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from enum import Enum
from typing import Final, TypeAlias

from viewstamp.limits import KIB, MIB, PREPARE_BODY_BYTES_MAX

OUTBOX_MESSAGES_MAX: Final = 1_024
OUTBOX_BYTES_MAX: Final = 32 * MIB
# One body of the largest size and other messages. More would only delay the next heartbeat.
PACKET_BYTES_MAX: Final = PREPARE_BODY_BYTES_MAX + 64 * KIB
PACKET_MESSAGES_MAX: Final = 256


class OutboxLane(Enum):
    """Which messages are given up first."""

    BODY = "body"
    URGENT = "urgent"


@dataclass(frozen=True, slots=True)
class OutgoingMessage:
    """An encoded message. `kind` is its type; the newest of a kind is worth most."""

    lane: OutboxLane
    kind: type
    data: bytes


_Numbered: TypeAlias = tuple[int, OutgoingMessage]


class Outbox:
    """The waiting messages. Bytes shared between outboxes count in each."""

    def __init__(
        self,
        messages_max: int = OUTBOX_MESSAGES_MAX,
        bytes_max: int = OUTBOX_BYTES_MAX,
        packet_bytes_max: int = PACKET_BYTES_MAX,
    ) -> None:
        self.bytes = 0
        self.dropped = 0
        """Messages given up for lack of room, or of a connection."""
        self._messages_max = messages_max
        self._bytes_max = bytes_max
        self._packet_bytes_max = packet_bytes_max
        self._next = 0
        self._bodies: deque[_Numbered] = deque()
        self._urgent: deque[_Numbered] = deque()

    def __len__(self) -> int:
        return len(self._bodies) + len(self._urgent)

    def put(self, outgoing: OutgoingMessage) -> None:
        """Add a message, giving up others if there is no room for all."""
        lane = self._bodies if outgoing.lane is OutboxLane.BODY else self._urgent
        lane.append((self._next, outgoing))
        self._next += 1
        self.bytes += len(outgoing.data)
        while len(self) > self._messages_max or self.bytes > self._bytes_max:
            self._drop(self._bodies or self._urgent)

    def put_newest(self, outgoing: OutgoingMessage) -> None:
        """Add a message while there is no connection; it replaces an older one of its kind."""
        lane = self._bodies if outgoing.lane is OutboxLane.BODY else self._urgent
        for _ in range(len(lane)):
            number, waiting = lane.popleft()
            if waiting.kind is not outgoing.kind:
                lane.append((number, waiting))
                continue
            self.bytes -= len(waiting.data)
            self.dropped += 1
        self.put(outgoing)

    def clear(self) -> None:
        """Give up everything: the connection is lost, and the order with it."""
        self.dropped += len(self)
        self._bodies.clear()
        self._urgent.clear()
        self.bytes = 0

    def packet(self) -> tuple[bytes, int]:
        """Take the next messages: their joined encodings, and how many; at least one if any wait.

        Urgent ones go first; each packet also carries a body, so that neither lane starves.
        """
        taken: list[_Numbered] = []
        size = self._take(self._urgent, taken, 0)
        if self._bodies:
            size += len(self._bodies[0][1].data)
            taken.append(self._bodies.popleft())
            size = self._take(self._bodies, taken, size)
        self.bytes -= size
        taken.sort(key=_number)
        return b"".join(outgoing.data for _, outgoing in taken), len(taken)

    def _take(self, lane: deque[_Numbered], taken: list[_Numbered], size: int) -> int:
        """Move messages from the lane while there is room; return the new size."""
        while lane and len(taken) < PACKET_MESSAGES_MAX:
            length = len(lane[0][1].data)
            if taken and size + length > self._packet_bytes_max:
                break
            taken.append(lane.popleft())
            size += length
        return size

    def _drop(self, lane: deque[_Numbered]) -> None:
        _, outgoing = lane.popleft()
        self.bytes -= len(outgoing.data)
        self.dropped += 1


def _number(entry: _Numbered) -> int:
    return entry[0]
