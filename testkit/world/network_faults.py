"""Faults of the network: links that let nothing through, and connections that break."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from testkit.partitions import SHAPES, partition
from testkit.world.ground import LASTS_MS, Ground


class NetworkFaults:
    """Each fault returns whether it happened."""

    def __init__(self, ground: Ground) -> None:
        self._ground = ground
        self.strikes: Mapping[str, Callable[[], bool]] = {
            "cut": self._cut_one,
            "cut_client": self._cut_client,
            "isolate": self._isolate,
            "partition": self._partition,
            "lose": self._lose,
        }

    def end(self) -> None:
        """Let everything through again."""
        self._ground.world.network.heal_all()

    def _hosts(self) -> list[str]:
        return [replica.machine.host for replica in self._ground.replicas]

    def _cut_one(self) -> bool:
        """Cut one link, in one direction or both."""
        hosts = self._hosts()
        if len(hosts) < 2:
            return False
        source, target = self._ground.random.sample(hosts, 2)
        return self._cut_between([(source, target)])

    def _cut_client(self) -> bool:
        """Cut a client off from one replica, or from all."""
        client = self._ground.caller()
        if client is None:
            return False
        hosts = self._hosts()
        if self._ground.random.random() < 0.5:
            hosts = [self._ground.replica().machine.host]
        return self._cut_between([(client.machine.host, host) for host in hosts])

    def _isolate(self) -> bool:
        """Cut one replica off from the others, or make it deaf or mute."""
        host = self._ground.replica().machine.host
        return self._cut_between([(host, other) for other in self._hosts() if other != host])

    def _partition(self) -> bool:
        """Part the replicas: one from the rest, in halves, with a bridge, or in a ring."""
        random, hosts = self._ground.random, self._hosts()
        if len(hosts) < 2:
            return False
        shape = random.choice(SHAPES)
        links = partition(shape, range(len(hosts)), self._ground.replica().number, random)
        self._ground.branches.counts[f"partition {shape}"] += bool(links)
        return self._cut([(hosts[source], hosts[target]) for source, target in links])

    def _cut_between(self, links: list[tuple[str, str]]) -> bool:
        ways = self._ground.random.choice(("there", "back", "both"))
        cut = [(b, a) if ways == "back" else (a, b) for a, b in links]
        if ways == "both":
            cut += [(b, a) for a, b in links]
        return self._cut(cut)

    def _cut(self, cut: list[tuple[str, str]]) -> bool:
        for source, target in cut:
            self._ground.world.network.cut(source, target)
        self._ground.later(LASTS_MS, self._heal, cut)
        return bool(cut)

    def _heal(self, cut: list[tuple[str, str]]) -> None:
        for source, target in cut:
            self._ground.world.network.heal(source, target)

    def _lose(self) -> bool:
        """Break every connection between a replica and another one, or a client."""
        host = self._ground.replica().machine.host
        hosts = self._hosts() + [each.machine.host for each in self._ground.clients.processes]
        others = [each for each in hosts if each != host]
        if not others:
            return False
        self._ground.world.network.lose_connections(host, self._ground.random.choice(others))
        return True
