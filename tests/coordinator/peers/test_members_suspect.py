"""What a replica's core learns when the connections to another replica break."""

from __future__ import annotations

from typing import Any
from unittest.mock import MagicMock, Mock

from coordinator import vsr
from coordinator.app.members import MemberPorts, Members
from coordinator.base.roster import Roster
from coordinator.peers.status import LinkState, PeerStatus
from tests.coordinator.peers.peer_trial import config, free_addresses, serving, until


def members(addresses: dict[int, str], stepped: list[vsr.Event]) -> Members:
    """Return replica 0's members, with a core that only remembers its events."""
    names = MemberPorts.__dataclass_fields__
    ports: dict[str, Any] = {name: MagicMock(return_value=0) for name in names}
    ports["driver"].return_value = Mock(step=stepped.append)
    ports["files"].superblock.exists = False
    ports["roster"] = Roster.founding(0, 3)
    return Members(config(addresses, 0), MemberPorts(**ports))


def stands(status: PeerStatus) -> bool:
    """Return whether both directions to a peer are open."""
    return status.state is LinkState.CONNECTED and status.is_heard


async def test_a_dead_process_is_suspected_at_once() -> None:
    """The core is told of a replica once both directions to it are gone, and of no other."""
    addresses, stepped = free_addresses(), list[vsr.Event]()
    made = members(addresses, stepped)
    async with serving(config(addresses, 2)) as lasting:
        await made.peers.start()
        try:
            async with serving(config(addresses, 1)) as dying:
                await dying.until_connected(0)
                await lasting.until_connected(0)
                await until(lambda: all(map(stands, made.peers.status())))
                assert stepped == []
            await until(lambda: stepped != [])
            assert set(stepped) == {vsr.Suspect(1)}
        finally:
            await made.peers.stop()
