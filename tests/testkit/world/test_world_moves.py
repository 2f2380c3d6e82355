"""Replicas of the world that come back at another address: names are resolved again."""

from __future__ import annotations

from dataclasses import replace

import pytest

from testkit.world.grpc_calls import ChannelCore
from testkit.world.options import WorldOptions
from testkit.world.replica import host_of
from testkit.world.run import WorldRun
from testkit.world.schedule import NS_PER_S
from testkit.world.world import World

MOVING = WorldOptions(clients=2, callers=1, keys=2, seconds=4, faults=("move",))
NAME = "replica-0.world"


@pytest.mark.long
def test_replicas_are_found_where_they_have_moved() -> None:
    """Peers and clients find replicas at their new addresses, and all promises hold."""
    run = WorldRun(1, replace(MOVING, every_ms=(200, 1_500)))
    outcome = run.run()
    assert outcome.violations == []
    assert outcome.faults["move"] > 0
    moved = [replica for replica in run.replicas if replica.moves]
    assert len(moved) > 0
    hosts = {each.server.process.machine.host for each in run.world.network.connections.values()}
    assert {host_of(replica.number, replica.moves) for replica in moved} <= hosts
    assert not {host_of(replica.number) for replica in moved} & hosts


@pytest.mark.long
def test_a_lone_replica_may_move() -> None:
    """A client of one replica finds it again by its name, although nobody else could tell it."""
    outcome = WorldRun(3, replace(MOVING, replicas=1, every_ms=(500, 2_000))).run()
    assert outcome.violations == []
    assert outcome.faults["move"] > 0


def test_a_channel_resolves_a_name_again_after_a_while() -> None:
    """For 30 s a channel goes on with the address that it knows; a new channel asks at once."""
    world = World(1)
    network, process = world.network, world.process("p", world.machine("10.0.1.1"))
    network.names[NAME] = "10.0.0.1"
    channel = ChannelCore(process, f"{NAME}:7400", {})
    assert channel.place() == "10.0.0.1:7400"
    network.names[NAME] = "10.0.5.1"
    assert channel.place() == "10.0.0.1:7400"
    assert ChannelCore(process, f"{NAME}:7400", {}).place() == "10.0.5.1:7400"
    world.schedule.now_ns += 30 * NS_PER_S
    assert channel.place() == "10.0.5.1:7400"
