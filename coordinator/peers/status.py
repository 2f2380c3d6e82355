"""What is known about each peer, for operators and the shell."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final

from coordinator.peers.hello import HelloRefusal


class LinkState(Enum):
    """The state of the stream to a peer. The other direction is that peer's link to us."""

    CONNECTING = "connecting"
    CONNECTED = "connected"
    REFUSED = "refused"


# How gRPC tells that a name has no address.
_UNKNOWN_NAME: Final = ("DNS resolution failed", "errors resolving")


def is_name_unknown(why: str) -> bool:
    """Return whether gRPC's text says that a name has no address."""
    return any(words in why for words in _UNKNOWN_NAME)


@dataclass(frozen=True, slots=True)
class PeerStatus:
    """One peer. Counts are since the start of this process.

    `why` says what keeps the link from being connected, and `refusal` why the peer refuses it.
    `refused_hello` says what was wrong with the last hello that claimed to be this peer; it is
    empty once one was accepted. `is_heard` tells whether its stream to us is open; `last_heard_ms`
    is the age of its last sign of life, None before the first. `sent_packets` includes empty ones,
    and `undecodable` counts received messages that were dropped, by rule.
    """

    replica: int
    address: str
    state: LinkState
    refusal: HelloRefusal | None
    why: str
    is_heard: bool
    refused_hello: str
    last_heard_ms: int | None
    queued_messages: int
    queued_bytes: int
    sent: int
    sent_packets: int
    dropped: int
    received: int
    undecodable: Mapping[str, int]
