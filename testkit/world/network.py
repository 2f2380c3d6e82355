"""Connections between processes: delay, cuts in one direction or both, deaths, and keepalive.

A connection is TCP's: what one stream sends arrives in order or not at all, while different streams
overtake each other. A cut loses nothing by itself: bytes wait for the cut to end, and each side
thinks that the other is merely silent, until its keepalive says otherwise.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from testkit.world.schedule import NS_PER_MS, NS_PER_S, NS_PER_US

if TYPE_CHECKING:
    from testkit.world.byte_streams import ByteTransport
    from testkit.world.process import WorldProcess
    from testkit.world.world import World

_LOCAL_NS: Final = (10 * NS_PER_US, 150 * NS_PER_US)
_REMOTE_NS: Final = (100 * NS_PER_US, 2 * NS_PER_MS)
# One packet in so many is lost and sent again, or waits in a full queue.
_ONE_LATE_IN: Final = 200
_LATE_NS: Final = (5 * NS_PER_MS, 250 * NS_PER_MS)
# TCP tries again after at least so long.
_AGAIN_NS: Final = (20 * NS_PER_MS, 400 * NS_PER_MS)
_DIAL_AGAIN_NS: Final = (200 * NS_PER_MS, NS_PER_S)

Told = Callable[["WorldConnection | None", str], None]


class Pipe:
    """One direction of one stream: first in, first out.

    `unheard` is told of what comes to a live process that has closed its end.
    """

    def __init__(
        self,
        source: End,
        target: End,
        take: Callable[[Any], None],
        unheard: Callable[[Any], None] = lambda frame: None,
    ) -> None:
        self._source = source
        self._target = target
        self._take = take
        self._unheard = unheard
        self._last_due_ns = 0

    def send(self, frame: Any) -> None:
        """Let a frame arrive later, unless the connection breaks before."""
        if not self._source.is_broken:
            self.send_from_system(frame)

    def send_from_system(self, frame: Any) -> None:
        """Let a frame arrive later, also of an end that its process has closed."""
        source, network = self._source, self._source.network
        schedule = network.world.schedule
        due_ns = schedule.now_ns + network.delay_ns(source, self._target)
        self._last_due_ns = max(due_ns, self._last_due_ns + 1)
        schedule.at(self._last_due_ns, self._arrive, frame)

    def _arrive(self, frame: Any) -> None:
        network = self._source.network
        network.pass_through(self._source, self._target, lambda: self._arrive_now(frame))

    def _arrive_now(self, frame: Any) -> None:
        source, target = self._source, self._target
        if not target.process.is_alive:
            # Nobody has this port any more: the machine says so.
            source.network.send_reset(target, source)
        elif target.is_broken:
            self._unheard(frame)
        else:
            target.process.loop.call_soon(self._take, frame)


class End:
    """One process's side of a connection. `keepalive_ns` is after how much silence it gives up."""

    def __init__(
        self, network: WorldNetwork, process: WorldProcess, keepalive_ns: int | None
    ) -> None:
        self.network = network
        self.process = process
        self.keepalive_ns = keepalive_ns
        self.is_broken = False
        self.streams: dict[int, Callable[[str], None]] = {}
        """What to tell of a break, by stream."""
        self.broken: Callable[[str], None] = lambda why: None
        """Told once of the break of the whole connection."""

    def break_now(self, why: str) -> None:
        """Be broken from now on, and let the process hear of it."""
        if self.is_broken:
            return
        self.is_broken = True
        loop = self.process.loop
        for told in (*self.streams.values(), self.broken):
            loop.call_soon(told, why)
        self.streams.clear()


class WorldConnection:
    """Two ends. What happens to one reaches the other as news, if the network carries it."""

    client_transport: ByteTransport
    """The client's end of one that carries bytes."""

    def __init__(self, network: WorldNetwork, client: End, server: End, address: str) -> None:
        self.client = client
        self.server = server
        self.address = address
        self.serial = network.world.next_serial()
        self._network = network
        self._streams = 0
        for end, other in ((client, server), (server, client)):
            end.process.killed.append(partial(self._killed, end, other))

    def new_stream(self) -> int:
        """Return the number of a new stream."""
        self._streams += 1
        return self._streams

    def close(self, end: End, why: str) -> None:
        """Close from one end; the other one hears of it later."""
        if not end.is_broken:
            end.break_now(why)
            self._died(end, self.client if end is self.server else self.server)

    def leave(self, end: End) -> None:
        """Close one end whose last bytes, or their end, are under way to the other one."""
        end.is_broken = True
        if self.client.is_broken and self.server.is_broken:
            self._network.connections.pop(self.serial, None)

    def lose(self, why: str) -> None:
        """Break both ends, as a router does that forgets a connection."""
        self.client.break_now(why)
        self.server.break_now(why)

    def _killed(self, end: End, other: End) -> None:
        if not end.is_broken:
            self._died(end, other)

    def _died(self, end: End, other: End) -> None:
        """Tell the other end. What was already under way may arrive before."""
        end.is_broken = True
        self._network.connections.pop(self.serial, None)
        schedule = self._network.world.schedule
        schedule.after(self._network.delay_ns(end, other), self._hear_of_end, end, other)

    def _hear_of_end(self, end: End, other: End) -> None:
        self._network.pass_through(end, other, lambda: other.break_now("Socket closed"))


class WorldNetwork:
    """All connections and cuts of a world, and what listens at which address."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.listeners: dict[str, Listening] = {}
        self.names: dict[str, str] = {}
        """Where names of hosts lead; any other host stands for itself."""
        self.connections: dict[int, WorldConnection] = {}
        self.vacant: set[str] = set()
        """Hosts that are gone: nobody says there that a port is closed."""
        self._cuts_since_ns: dict[tuple[str, str], int] = {}
        self._held: dict[tuple[str, str], list[Callable[[], object]]] = {}
        """What waits for the end of a cut, by the hosts that it goes from and to."""

    def resolve(self, place: str) -> str:
        """Return a place with the address that its name has now, if it has a name."""
        name, _, rest = place.partition(":")
        return f"{self.names.get(name, name)}:{rest}"

    # --- Faults ---

    def cut(self, source: str, target: str) -> None:
        """Let nothing pass from one host to another; the other direction is not concerned."""
        self.world.schedule.note("network", f"cut {source} -> {target}")
        self._cuts_since_ns.setdefault((source, target), self.world.schedule.now_ns)
        for connection in self._between(source, target):
            self._watch(connection)

    def heal(self, source: str, target: str) -> None:
        """Let bytes pass again: what has waited arrives soon."""
        if self._cuts_since_ns.pop((source, target), None) is None:
            return
        schedule = self.world.schedule
        schedule.note("network", f"heal {source} -> {target}")
        schedule.after(schedule.draw(*_AGAIN_NS), self._flush, (source, target))

    def heal_all(self) -> None:
        """End every cut."""
        for source, target in list(self._cuts_since_ns):
            self.heal(source, target)

    def lose_connections(self, host: str, other: str) -> None:
        """Break every connection between two hosts."""
        self.world.schedule.note("network", f"lost {host} - {other}")
        for connection in self._between(host, other):
            connection.lose("Connection reset by peer")
            self.connections.pop(connection.serial, None)

    def trouble(self, process: WorldProcess) -> None:
        """Have those who are connected with a process notice that it is silent."""
        for connection in list(self.connections.values()):
            if process in (connection.client.process, connection.server.process):
                self._watch(connection)

    def _between(self, host: str, other: str) -> list[WorldConnection]:
        return [
            connection
            for connection in list(self.connections.values())
            if {connection.client.process.machine.host, connection.server.process.machine.host}
            == {host, other}
        ]

    def _flush(self, way: tuple[str, str]) -> None:
        if way not in self._cuts_since_ns:
            for arrive in self._held.pop(way, []):
                arrive()

    def is_cut(self, source: str, target: str) -> bool:
        """Whether nothing gets from one host to another."""
        return (source, target) in self._cuts_since_ns

    # --- Silence ---

    def silent_since_ns(self, end: End, other: End) -> int | None:
        """Return since when the other end cannot be heard, None if it can."""
        here, there = end.process.machine.host, other.process.machine.host
        since = [
            self._cuts_since_ns.get((here, there)),
            self._cuts_since_ns.get((there, here)),
            other.process.paused_since_ns,
        ]
        return min((each for each in since if each is not None), default=None)

    def _watch(self, connection: WorldConnection) -> None:
        for end, other in (
            (connection.client, connection.server),
            (connection.server, connection.client),
        ):
            if end.keepalive_ns is not None:
                jitter_ns = self.world.schedule.draw(0, end.keepalive_ns // 4)
                delay_ns = end.keepalive_ns + jitter_ns
                self.world.schedule.after(delay_ns, self._look, connection, end, other)

    def _look(self, connection: WorldConnection, end: End, other: End) -> None:
        since_ns = self.silent_since_ns(end, other)
        if end.is_broken or since_ns is None or end.keepalive_ns is None:
            return
        if since_ns + end.keepalive_ns <= self.world.schedule.now_ns:
            connection.close(end, "ping timeout")

    # --- Packets ---

    def pass_through(self, source: End, target: End, arrive: Callable[[], object]) -> None:
        """Let something arrive now, or once the cut that it has met is over."""
        way = (source.process.machine.host, target.process.machine.host)
        if way in self._held or way in self._cuts_since_ns:
            self._held.setdefault(way, []).append(arrive)
        else:
            arrive()

    def send_reset(self, source: End, target: End) -> None:
        """Have an end hear that there is nothing at the other one."""
        delay_ns = self.delay_ns(source, target)
        self.world.schedule.after(
            delay_ns,
            self.pass_through,
            source,
            target,
            lambda: target.break_now("Connection reset by peer"),
        )

    def delay_ns(self, source: End, target: End) -> int:
        """Draw how long a packet takes."""
        return self._delay_ns(source.process.machine.host == target.process.machine.host)

    def _delay_ns(self, is_local: bool) -> int:
        draw = self.world.schedule.draw
        if is_local:
            return draw(*_LOCAL_NS)
        if draw(1, _ONE_LATE_IN) == 1:
            return draw(*_LATE_NS)
        return draw(*_REMOTE_NS)

    # --- Dialling ---

    def dial(self, dialling: Dialling) -> None:
        """Try to connect."""
        is_local = _host_of(dialling.address) == dialling.client.machine.host
        self.world.schedule.after(self._delay_ns(is_local), self._knock, dialling)

    def _knock(self, dialling: Dialling) -> None:
        client, address = dialling.client, dialling.address
        if not client.is_alive or dialling.is_called_off:
            return
        schedule = self.world.schedule
        listening = self.listeners.get(address)
        is_reached = not self._is_cut_off(client.machine.host, _host_of(address))
        if is_reached and (listening is None or not listening.process.is_alive):
            client.loop.call_soon(dialling.told, None, "Connection refused")
        elif is_reached and listening is not None and listening.answers:
            self._connect(dialling, listening)
        elif schedule.now_ns >= dialling.end_ns:
            client.loop.call_soon(dialling.told, None, "connection attempt timed out")
        else:
            again_ns = min(
                schedule.draw(*_DIAL_AGAIN_NS), max(dialling.end_ns - schedule.now_ns, 1)
            )
            schedule.after(again_ns, self._knock, dialling)

    def _is_cut_off(self, host: str, other: str) -> bool:
        return other in self.vacant or self.is_cut(host, other) or self.is_cut(other, host)

    def _connect(self, dialling: Dialling, listening: Listening) -> None:
        client_end = End(self, dialling.client, dialling.keepalive_ns)
        server_end = End(self, listening.process, listening.keepalive_ns)
        connection = WorldConnection(self, client_end, server_end, dialling.address)
        self.connections[connection.serial] = connection
        if listening.accepts is not None:
            listening.accepts(connection)
        delay_ns = self.delay_ns(server_end, client_end)
        told = dialling.client.loop.call_soon
        self.world.schedule.after(delay_ns, told, dialling.told, connection, "")


class Dialling:
    """A client that tries to connect until `end_ns`; `told` gets the connection, or None and why
    there is none."""

    def __init__(
        self, client: WorldProcess, address: str, keepalive_ns: int | None, end_ns: int, told: Told
    ) -> None:
        self.client = client
        self.address = address
        self.keepalive_ns = keepalive_ns
        self.end_ns = end_ns
        self.told = told
        self.is_called_off = False

    def call_off(self) -> None:
        """Try no more."""
        self.is_called_off = True


class Listening:
    """A server at an address. One of bytes says what it `accepts` a connection with."""

    def __init__(
        self,
        process: WorldProcess,
        keepalive_ns: int | None,
        server: Any,
        accepts: Callable[[WorldConnection], None] | None = None,
    ) -> None:
        self.process = process
        self.keepalive_ns = keepalive_ns
        self.server = server
        self.accepts = accepts

    @property
    def answers(self) -> bool:
        """Whether a client gets a connection: by the system, also while the process pauses."""
        return self.accepts is not None or self.process.paused_since_ns is None


def place_of(host: str, address: str) -> str:
    """Return what an address means on a host, as HOST:PORT or HOST:PATH."""
    return f"{host}:{address.removeprefix('unix:')}" if address.startswith("unix:") else address


def _host_of(place: str) -> str:
    return place.partition(":")[0]
