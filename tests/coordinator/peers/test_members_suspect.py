"""What a replica's core is told when the connections with another one break."""

from __future__ import annotations

from unittest.mock import MagicMock, Mock

from coordinator import vsr
from coordinator.app.members import MemberPorts, Members
from coordinator.peers.status import LinkState, PeerStatus
from tests.coordinator.peers.peer_trial import config, free_addresses, serving, until


def members(addresses: dict[int, str], stepped: list[vsr.Event]) -> Members:
    """Return replica 0's members, whose core only remembers what it is told."""
    names = MemberPorts.__dataclass_fields__
    ports = {name: MagicMock(return_value=0) for name in names}
    ports["driver"].return_value = Mock(step=stepped.append)
    return Members(config(addresses, 0), MemberPorts(**ports))


def stands(status: PeerStatus) -> bool:
    """Whether both directions to a peer are open."""
    return status.state is LinkState.CONNECTED and status.is_heard


async def test_a_dead_process_is_suspected_at_once() -> None:
    """When both directions to a replica are gone the core is told, and of no other replica."""
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
