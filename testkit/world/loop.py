"""The event loop of one simulated process: real coroutines, virtual time, sockets of the world.

It is everything that asyncio asks of a loop and the product uses. `AbstractEventLoop` refuses the
rest by an exception, subprocesses for example.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from asyncio import events
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from contextvars import Context
from typing import TYPE_CHECKING, Any, Final, TypeVarTuple

from testkit.world import byte_streams
from testkit.world.schedule import NS_PER_S, Happening

if TYPE_CHECKING:
    from testkit.world.process import WorldProcess

Ts = TypeVarTuple("Ts")

_THREADS_OF_THE_DEFAULT_EXECUTOR: Final = 6


class WorldTask(asyncio.Task[Any]):
    """A task whose hash is a serial number, so that a set of tasks always has the same order."""

    def __init__(self, coroutine: Any, *, serial: int, **options: Any) -> None:
        self.serial = serial
        super().__init__(coroutine, **options)

    def __hash__(self) -> int:
        """Return the serial number."""
        return self.serial


class WorldFuture(asyncio.Future[Any]):
    """A future whose hash is a serial number."""

    def __init__(self, *, serial: int, loop: asyncio.AbstractEventLoop) -> None:
        self.serial = serial
        super().__init__(loop=loop)

    def __hash__(self) -> int:
        """Return the serial number."""
        return self.serial


class WorldLoop(asyncio.AbstractEventLoop):
    """Runs the handles of one process in order, one whenever the world says that it is its turn."""

    def __init__(self, process: WorldProcess) -> None:
        self._process = process
        self._schedule = process.world.schedule
        self._ready: deque[asyncio.Handle] = deque()
        self._unfinished: dict[int, WorldTask] = {}
        self._timers: dict[int, Happening] = {}
        self._signals: dict[int, Callable[[], object]] = {}
        self._is_closed = False

    # --- For the world ---

    @property
    def has_work(self) -> bool:
        """Whether a handle waits for its turn."""
        return bool(self._ready)

    def run_one(self) -> None:
        """Run the first handle that was not cancelled."""
        while self._ready:
            handle = self._ready.popleft()
            if not handle.cancelled():
                self._run(handle)
                return

    def _run(self, handle: asyncio.Handle) -> None:
        """Do what `running` does around a handle; a context manager would be a tenth of a run."""
        assert events._get_running_loop() is None, "a loop runs inside another one"
        events._set_running_loop(self)
        try:
            handle._run()
        finally:
            events._set_running_loop(None)

    @contextlib.contextmanager
    def running(self) -> Generator[None]:
        """Have this loop be the running one."""
        assert events._get_running_loop() is None, "a loop runs inside another one"
        events._set_running_loop(self)
        try:
            yield
        finally:
            events._set_running_loop(None)

    def abandon(self) -> None:
        """Let nothing happen here any more, as after SIGKILL: nothing is cancelled or closed."""
        self._is_closed = True
        self._ready.clear()
        for happening in self._timers.values():
            happening.call_off()
        self._timers.clear()

    def unfinished(self) -> list[WorldTask]:
        """Return the tasks that are not done, in the order in which they began."""
        return list(self._unfinished.values())

    def raise_signal(self, number: int) -> None:
        """Deliver a signal that the process handles."""
        self.call_soon(self._signals[number])

    # --- Handles ---

    def call_soon(
        self,
        callback: Callable[[*Ts], object],
        *args: *Ts,
        context: Context | None = None,
    ) -> asyncio.Handle:
        """Append a handle; a dead process takes none."""
        handle = asyncio.Handle(callback, args, self, context)
        if not self._is_closed:
            self._ready.append(handle)
            self._process.wake()
        return handle

    def call_soon_threadsafe(
        self,
        callback: Callable[[*Ts], object],
        *args: *Ts,
        context: Context | None = None,
    ) -> asyncio.Handle:
        """Do what `call_soon` does: there are no threads."""
        return self.call_soon(callback, *args, context=context)

    def call_later(
        self,
        delay: float,
        callback: Callable[[*Ts], object],
        *args: *Ts,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        """Call after a delay in seconds."""
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_at(
        self,
        when: float,
        callback: Callable[[*Ts], object],
        *args: *Ts,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        """Call when this machine's clock says `when`, in seconds."""
        timer = asyncio.TimerHandle(when, callback, args, self, context)
        if not self._is_closed:
            due_ns = self._process.machine.virtual_ns(when)
            self._timers[id(timer)] = self._schedule.at(due_ns, self._timer_due, timer)
            timer._scheduled = True  # type: ignore[attr-defined]
        return timer

    def _timer_due(self, timer: asyncio.TimerHandle) -> None:
        self._timers.pop(id(timer), None)
        self._ready.append(timer)
        self._process.wake()

    def _timer_handle_cancelled(self, timer: asyncio.TimerHandle) -> None:
        happening = self._timers.pop(id(timer), None)
        if happening is not None:
            happening.call_off()

    def time(self) -> float:
        """Return this machine's monotonic clock in seconds."""
        return self._process.machine.monotonic_ns() / NS_PER_S

    # --- Tasks and futures ---

    def create_future(self) -> asyncio.Future[Any]:
        """Return a future whose hash is the same in every run."""
        return WorldFuture(serial=self._process.world.next_serial(), loop=self)

    def create_task(
        self, coro: Any, *, name: str | None = None, context: Context | None = None
    ) -> asyncio.Task[Any]:
        """Return a task whose hash is the same in every run; it is kept until it is done."""
        serial = self._process.world.next_serial()
        task = WorldTask(coro, serial=serial, loop=self, name=name or f"t{serial}", context=context)
        self._unfinished[serial] = task
        task.add_done_callback(self._finished)
        return task

    def _finished(self, task: asyncio.Future[Any]) -> None:
        del self._unfinished[hash(task)]

    def get_task_factory(self) -> None:
        """Return None: there is no other factory."""

    # --- Threads ---

    def run_in_executor(  # type: ignore[override]
        self, executor: Any, func: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        """Run a function when a thread of the executor would have got to it."""
        threads = getattr(executor, "_max_workers", _THREADS_OF_THE_DEFAULT_EXECUTOR)
        return self._process.lane_of(executor, threads).submit(lambda: func(*args))

    # --- Sockets ---

    async def getaddrinfo(self, host: Any, port: Any, **_: Any) -> Any:
        """Return where a name leads now."""
        return await byte_streams.look_up(self._process, host, port)

    async def create_connection(  # type: ignore[override]
        self,
        protocol_factory: byte_streams.Factory,
        host: str,
        port: int,
        *,
        ssl: ssl.SSLContext | None = None,
        server_hostname: str | None = None,
    ) -> Any:
        """Connect to a host, encrypted if there is a context."""
        return await byte_streams.connect(
            self._process, f"{host}:{port}", protocol_factory, ssl, server_hostname
        )

    async def create_unix_connection(  # type: ignore[override]
        self, protocol_factory: byte_streams.Factory, path: str, **_: Any
    ) -> Any:
        """Connect to a socket of this machine."""
        return await byte_streams.connect(self._process, f"unix:{path}", protocol_factory)

    async def sock_accept(self, sock: Any) -> Any:
        """Return the next connection of a socket that listens."""
        return await sock.accept()

    async def connect_accepted_socket(  # type: ignore[override]
        self,
        protocol_factory: byte_streams.Factory,
        sock: Any,
        *,
        ssl: ssl.SSLContext | None = None,
        ssl_handshake_timeout: float | None = None,
    ) -> Any:
        """Give an accepted connection to a protocol, encrypted if there is a context."""
        if ssl is None:
            return await byte_streams.begin(self._process, sock.transport, protocol_factory)
        return await byte_streams.begin_encrypted(
            *(self._process, sock.transport, protocol_factory, ssl),
            server_side=True,
            ssl_handshake_timeout=ssl_handshake_timeout,
        )

    # --- Process ---

    def add_signal_handler(self, sig: int, callback: Callable[[*Ts], object], *args: *Ts) -> None:
        """Remember what the process does with a signal."""
        self._signals[sig] = lambda: callback(*args)

    def is_running(self) -> bool:
        """Return whether a handle of this loop runs now."""
        return events._get_running_loop() is self

    def is_closed(self) -> bool:
        """Return whether the process is dead."""
        return self._is_closed

    def get_debug(self) -> bool:
        """Return False: debugging would slow everything down."""
        return False

    async def shutdown_asyncgens(self) -> None:
        """Do nothing: what is left is abandoned with the process."""

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Tell the world of an exception that nobody caught."""
        if not self._is_closed:
            self._process.world.uncaught(self._process, context)

    def start(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Begin with a coroutine, from outside any loop."""
        with self.running():
            return self.create_task(work)
