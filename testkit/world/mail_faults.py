"""Faults of messages between replicas, and strangers that say hello."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from random import Random
from typing import Final

from coordinator.peers.agreement import agreed_limits
from coordinator.peers.hello import HelloRefusal
from coordinator.peers.link import PeerLink
from coordinator.peers.peers import PeersConfig, hello_of
from coordinator.peers.settings import PeerSettings
from testkit.world.ground import Ground
from testkit.world.letters import TROUBLES
from testkit.world.mail import STRANGE_CLUSTER_ID
from testkit.world.replica import WorldReplica
from viewstamp.limits import BOOT_NONCE_BYTES

_LASTS_MS: Final = (200, 8_000)
_WAY_SHARE: Final = 0.4


class MailFaults:
    """Each fault returns whether it happened."""

    def __init__(self, ground: Ground) -> None:
        self._ground = ground
        self._strangers = 0
        self.strikes: Mapping[str, Callable[[], bool]] = {
            **{kind: partial(self._trouble, kind) for kind in TROUBLES},
            "stranger": self._stranger,
            "echoes": self._echoes,
        }

    def end(self) -> None:
        """Let every message arrive once and soon."""
        self._ground.mail.end()

    def _trouble(self, kind: str) -> bool:
        """Let something be wrong on every way between replicas, or on some."""
        random, members = self._ground.random, range(len(self._ground.replicas))
        ways = [(here, there) for here in members for there in members if here != there]
        if random.random() < 0.5:
            ways = [way for way in ways if random.random() < _WAY_SHARE]
        duration_ms = random.randint(*_LASTS_MS)
        self._ground.mail.trouble(kind, ways, duration_ms, Random(random.getrandbits(64)))
        return bool(ways)

    def _echoes(self) -> bool:
        random = self._ground.random
        self._ground.mail.echo(random.randint(*_LASTS_MS), Random(random.getrandbits(64)))
        return len(self._ground.replicas) > 1

    # --- Strangers ---

    def _stranger(self) -> bool:
        """Let messages come again as of another cluster, and a replica of that one say hello."""
        replicas = self._ground.replicas
        if len(replicas) < 2:
            return False
        self._strangers += 1
        world = self._ground.world
        machine = world.machine(f"10.0.3.{self._strangers}")
        stranger = world.process(f"x{self._strangers}", machine)
        target = self._ground.replica()
        stranger.run(lambda: self._say_hello(target))
        return self._trouble("stranger")

    async def _say_hello(self, target: WorldReplica) -> None:
        """Say hello to one replica. Whoever accepts a replica of another cluster is defective."""
        options = self._ground.options
        others = {each.number: each.peer_address for each in self._ground.replicas}
        own = (target.number + 1) % options.replicas
        others.pop(own)
        settings = PeerSettings("", others, None, options.standbys)
        nonce = bytes(BOOT_NONCE_BYTES)
        config = PeersConfig(STRANGE_CLUSTER_ID, own, options.replicas, nonce, settings)
        hello = hello_of(config, agreed_limits()).to(target.number)
        link = PeerLink(hello, target.peer_address, None, lambda: self._is_welcome(target, link))
        answer = await link.attempt()
        if answer.refusal is HelloRefusal.OTHER_CLUSTER:
            self._ground.branches.counts["hello of another cluster refused"] += 1
        elif answer.refusal is not None:
            self._is_welcome(target, link)

    def _is_welcome(self, target: WorldReplica, link: PeerLink) -> None:
        """Note a defect: nobody has to do with a replica of another cluster."""
        answer = link.standing
        self._ground.world.defect(f"replica {target.number} told a stranger: {answer}")
