"""Messages between replicas while something is wrong with them.

The product sends messages over TCP, which keeps the order of a stream and repeats nothing. The core
promises to bear more: a network without order that loses and doubles. So the mail stands above
gRPC, where a link takes a message that is to be sent. While there is no trouble it touches nothing.
What is troubled goes to the receiver past the connection, as if it had come over another one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any, Final

from coordinator.peers.codec import Undecodable, decode_packet
from coordinator.peers.outbox import OutgoingMessage
from testkit.world.letters import TROUBLES, Letter, PostOffice, Trouble, swallowed
from testkit.world.schedule import NS_PER_MS

if TYPE_CHECKING:
    from coordinator.peers.link import PeerLink
    from coordinator.peers.peers import Peers
    from testkit.world.branches import Branches
    from testkit.world.process import WorldProcess
    from testkit.world.replica import WorldReplica
    from testkit.world.world import World

# What a way holds. More is lost, as in a switch that is full.
LETTERS_UNDER_WAY_MAX: Final = 60
STRANGE_CLUSTER_ID: Final = bytes(15) + b"\xee"
# What comes once more was sent within this time: as late as messages on a detour may be.
ECHO_AGE_NS_MAX: Final = 4_000 * NS_PER_MS
ECHO_WITHIN_MS: Final = (1, 40)

Way = tuple[int, int]


@dataclass(frozen=True, slots=True)
class _Troubled:
    """One trouble, on these ways, until it ends."""

    ways: frozenset[Way]
    until_ns: int
    carry: Trouble


class Mail:
    """All messages between the replicas of a run."""

    def __init__(self, world: World, branches: Branches, cluster_id: bytes) -> None:
        self._world = world
        self._branches = branches
        self._cluster_id = cluster_id
        self._replicas: Sequence[WorldReplica] = ()
        self._listening: dict[int, tuple[WorldProcess, Peers]] = {}
        self._troubles: list[_Troubled] = []
        self.under_way: Counter[Way] = Counter()
        """How many letters are on each way, past the connection."""
        self._last_sent: dict[tuple[int, int, type], tuple[int, Letter]] = {}
        self._echoes: tuple[int, Random] | None = None

    # --- Life ---

    def watch(self, replicas: Sequence[WorldReplica]) -> None:
        """Take the messages of these replicas, which do not run yet. Others may follow."""
        self._replicas = replicas
        for replica in replicas:
            self.take(replica)

    def take(self, replica: WorldReplica) -> None:
        """Take the messages of one of the replicas, which does not run yet."""
        replica.opened.append(self._opened)

    def end(self) -> None:
        """End every trouble. What is under way arrives."""
        self._troubles.clear()
        self._echoes = None

    def _opened(self, replica: WorldReplica) -> None:
        members = None if replica.coordinator is None else replica.coordinator.members
        if members is None or replica.coordinator is None:
            return
        taken: set[PeerLink] = set()

        def take_links() -> None:
            for target, link in members.peers.links.items():
                if link not in taken:
                    taken.add(link)
                    sent = partial(self._sent, replica.number, target, link, link.send)
                    link.send = sent  # type: ignore[method-assign]

        take_links()
        replica.coordinator.roster.follow(take_links)
        started = partial(self._start, replica, members.peers, members.peers.start)
        members.peers.start = started  # type: ignore[method-assign]

    async def _start(self, replica: WorldReplica, peers: Peers, start: Callable[[], Any]) -> None:
        await start()
        process = replica.process
        assert process is not None, "it starts just now"
        self._listening[replica.number] = process, peers
        self._echo(replica.number)

    # --- Troubles ---

    def trouble(self, kind: str, ways: Sequence[Way], duration_ms: int, random: Random) -> None:
        """Let something be wrong on these ways for a while."""
        until_ns = self._world.schedule.now_ns + duration_ms * NS_PER_MS
        office = PostOffice(
            random,
            range(len(self._replicas)),
            self._cluster_id,
            lambda: (until_ns - self._world.schedule.now_ns) // NS_PER_MS,
            self._count,
        )
        self._troubles.append(_Troubled(frozenset(ways), until_ns, TROUBLES[kind](office)))

    def swallow(self, ways: Sequence[Way], duration_ms: int, *kinds: type) -> None:
        """Lose all messages of these kinds on these ways for a while; of all kinds if none is
        named."""
        until_ns = self._world.schedule.now_ns + duration_ms * NS_PER_MS
        carry = swallowed(self._count, frozenset(kinds))
        self._troubles.append(_Troubled(frozenset(ways), until_ns, carry))

    def echo(self, duration_ms: int, random: Random) -> None:
        """Let replicas that start within this time hear again what was sent to them before."""
        self._echoes = self._world.schedule.now_ns + duration_ms * NS_PER_MS, random

    def _count(self, what: str) -> None:
        self._branches.counts[what] += 1

    # --- Letters ---

    def _sent(
        self,
        source: int,
        target: int,
        link: PeerLink,
        send: Callable[[OutgoingMessage], None],
        outgoing: OutgoingMessage,
    ) -> None:
        now_ns = self._world.schedule.now_ns
        letter = Letter(source, target, outgoing.kind, outgoing.data)
        self._last_sent[target, source, outgoing.kind] = now_ns, letter
        self._troubles = [each for each in self._troubles if each.until_ns > now_ns]
        letters = [letter]
        for trouble in self._troubles:
            if (source, target) in trouble.ways:
                letters = [new for each in letters for new in trouble.carry(each)]
        for each in letters:
            if each.delay_ms is None:
                send(replace(outgoing, data=each.data))
            else:
                self._post(each, each.delay_ms)

    def _post(self, letter: Letter, delay_ms: int) -> None:
        way = letter.source, letter.target
        if self.under_way[way] < LETTERS_UNDER_WAY_MAX:
            self.under_way[way] += 1
            self._world.schedule.after(delay_ms * NS_PER_MS, self._arrive, letter)

    def _arrive(self, letter: Letter) -> None:
        self.under_way[letter.source, letter.target] -= 1
        process, peers = self._listening.get(letter.target, (None, None))
        if process is None or peers is None or not process.is_alive:
            return
        source, target = self._replicas[letter.source], self._replicas[letter.target]
        if not self._world.network.is_cut(source.machine.host, target.machine.host):
            process.loop.call_soon(self._take, peers, letter)

    def _take(self, peers: Peers, letter: Letter) -> None:
        """Hand a message to its receiver; a defect there ends the process, as in the product."""
        for message in decode_packet(letter.data, self._cluster_id, letter.source):
            assert not isinstance(message, Undecodable), f"its sender encoded it: {message}"
            if letter.is_strange:
                message = replace(message, cluster_id=STRANGE_CLUSTER_ID)
            try:
                peers.handlers[letter.kind](message)
            except Exception as error:
                peers.failed(error)
                raise

    def _echo(self, target: int) -> None:
        """Send half of the recent messages to a replica again, the last one of each kind."""
        now_ns = self._world.schedule.now_ns
        if self._echoes is None or self._echoes[0] <= now_ns:
            return
        random = self._echoes[1]
        for (to, _, _), (sent_ns, letter) in list(self._last_sent.items()):
            if to == target and now_ns - sent_ns <= ECHO_AGE_NS_MAX and random.random() < 0.5:
                self._count("message once more after a start")
                self._post(letter, random.randint(*ECHO_WITHIN_MS))
