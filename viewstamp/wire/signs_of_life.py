"""Tells peers that this process lives while its event loop is busy.

The gRPC library answers pings on threads of its own. Here the event loop answers them, and a
handler that blocks it for seconds would look like a dead process. So each process has one thread
that looks at its loops. If a loop has not turned since the last look, the thread sends a sign of
life for it: an empty frame of a kind that means nothing, which every peer ignores (RFC 9113,
section 5.5). Any byte counts for ours as a sign of life. A process that is stopped or dead has no
such thread, and looks dead.

The frame must not tear another one. So it leaves only while nothing waits in the transport, and the
loop and the thread write under one lock. A connection with TLS gets none: its state is the loop's.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable
from typing import Any, Final, Protocol

from viewstamp.http2.frames import CONNECTION, frame

LOOK_S: Final = 0.25
"""How often the thread looks: after at most twice this time a peer hears of a busy loop."""
SIGN: Final = frame(0x2A, 0, CONNECTION)
"""The sign; its kind is of those that are kept free so that peers learn to ignore them."""


class Speaker(Protocol):
    """A socket for which the thread may speak."""

    transport: asyncio.Transport

    def abort(self, why: str) -> None:
        """Close at once."""
        ...


class SocketBelow(Protocol):
    """The system's socket of a transport."""

    def fileno(self) -> int:
        """Return the descriptor, -1 once it is closed."""
        ...


class LoopWatch:
    """The sockets of one event loop, and whether it turns."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.lock = threading.RLock()  # a collection of garbage while it is held may close a socket
        """Held by whoever writes to one of the sockets."""
        self.speakers: dict[Speaker, SocketBelow] = {}
        """The sockets, and what is below them."""
        self._loop = loop
        self._has_turned = True

    def look(self) -> None:
        """Speak for the loop if it runs and has not turned since the last look."""
        if self._loop.is_closed():
            self.speakers.clear()
        elif not self._loop.is_running():
            return
        elif self._has_turned:
            self._has_turned = False
            self._tell_loop(self._turned)
        else:
            with self.lock:
                for speaker, below in list(self.speakers.items()):
                    self._speak(speaker, below)

    def _tell_loop(self, what: Callable[..., None], *arguments: str) -> None:
        try:
            self._loop.call_soon_threadsafe(what, *arguments)
        except RuntimeError:  # it is closed, and nobody else writes to its sockets
            self.speakers.clear()

    def _turned(self) -> None:
        self._has_turned = True

    def _speak(self, speaker: Speaker, below: SocketBelow) -> None:
        try:
            # A transport of asyncio may say so while it puts a rest back; then the system has no
            # room either.
            if speaker.transport.get_write_buffer_size():
                return  # the peer does not read
            # Asked now: it is -1 once the socket is closed, and the number may be another's.
            written = os.write(below.fileno(), SIGN)
        except (OSError, RuntimeError):
            return  # there is no room, the loop writes just now, or will see what happened
        if written < len(SIGN):
            self._tell_loop(speaker.abort, "a sign of life was torn")


class _Thread:
    """Looks at loops for as long as there is one with a socket."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._watches: dict[asyncio.AbstractEventLoop, LoopWatch] = {}
        self._thread: threading.Thread | None = None

    def add(self, speaker: Speaker, below: SocketBelow) -> LoopWatch | None:
        """Speak for a socket of the running loop from now on; None if the system has no thread."""
        loop = asyncio.get_running_loop()
        with self._lock:
            if self._thread is None or not self._thread.is_alive():
                thread = threading.Thread(target=self._run, name="signs-of-life", daemon=True)
                try:
                    thread.start()
                except RuntimeError:
                    return None
                self._thread = thread
            watch = self._watches.setdefault(loop, LoopWatch(loop))
            with watch.lock:
                watch.speakers[speaker] = below
        return watch

    def forget(self) -> None:
        """Begin anew in a process that was forked: its parent has the thread and the sockets."""
        self._lock = threading.Lock()
        self._watches = {}
        self._thread = None

    def _run(self) -> None:
        while self._look():
            time.sleep(LOOK_S)

    def _look(self) -> bool:
        """Look once; return whether there is anything left to look at."""
        with self._lock:
            for loop, watch in list(self._watches.items()):
                watch.look()
                if not watch.speakers:
                    del self._watches[loop]
            if not self._watches:
                self._thread = None
            return bool(self._watches)


_thread: Final = _Thread()
os.register_at_fork(after_in_child=_thread.forget)


def spoken_for(speaker: Speaker) -> LoopWatch | None:
    """Have the thread speak for a socket whose loop does not turn; None if it cannot.

    Whoever writes to the socket holds the lock of what is returned, and takes itself out under it
    before the socket is closed.
    """
    transport: Any = speaker.transport
    plain = transport.get_extra_info("socket")
    if plain is None or transport.get_extra_info("sslcontext") is not None:
        return None
    return _thread.add(speaker, plain)
