"""The other replicas as the driver sees them: how the core's effects reach beyond this one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from coordinator import vsr


def _alone(*_: object) -> None:
    raise AssertionError("a lone replica has nobody to talk to")


@dataclass(frozen=True, slots=True)
class PeerPorts:
    """How the core's effects on others are carried out.

    `send` neither waits nor confirms. `send_committed` and `send_held` read the journal for a peer.
    `snapshot_needed` ends in a restart from a peer's snapshot. `stuck` raises an alarm. `address`
    returns where a replica serves clients, empty while unknown.
    """

    replica_id: int = 0
    send: Callable[[int, vsr.Message], None] = _alone
    send_committed: Callable[[vsr.SendCommitted], None] = _alone
    send_held: Callable[[vsr.SendHeld], None] = _alone
    snapshot_needed: Callable[[vsr.SnapshotNeeded], None] = _alone
    stuck: Callable[[vsr.Stuck], None] = _alone
    address: Callable[[int], str] = lambda replica_id: ""


NO_PEERS: Final = PeerPorts()
