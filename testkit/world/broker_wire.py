"""How the broker programs of a world ask each other, beside the cluster.

Requests and answers are objects. Each takes its time, and is lost where a link is cut or a process
is dead; whoever asked gives up after a while.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from testkit.world.schedule import NS_PER_MS, NS_PER_US

if TYPE_CHECKING:
    from testkit.world.process import WorldProcess
    from testkit.world.world import World

_DELAY_NS: Final = (100 * NS_PER_US, 2 * NS_PER_MS)
# Longer than a leader makes a follower wait that has everything.
_PATIENCE_S: Final = 1.0

Handler: TypeAlias = Callable[[Any], Awaitable[Any]]


class NotServed(Exception):  # noqa: N818  An answer: whoever is asked does not lead.
    """A broker does not do what it was asked for."""


class BrokerWire:
    """Who serves at which host, and what is under way."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._serving: dict[str, tuple[WorldProcess, Handler]] = {}
        self._answering: set[asyncio.Task[None]] = set()

    def serve(self, handler: Handler) -> None:
        """Have requests to the host of the running process answered by it, as long as it lives."""
        process = self._world.current
        assert process is not None, "a process serves"
        self._serving[process.machine.host] = (process, handler)

    async def ask(self, host: str, request: Any) -> Any:
        """Return the answer of whoever serves at a host. Raises NotServed, TimeoutError."""
        asker = self._world.current
        assert asker is not None, "a process asks"
        answer = asker.loop.create_future()
        self._carry(asker.machine.host, host, self._arrive, asker, host, request, answer)
        async with asyncio.timeout(_PATIENCE_S):
            return await answer

    def _carry(self, source: str, target: str, arrive: Callable[..., None], *what: Any) -> None:
        schedule = self._world.schedule

        def arrived() -> None:
            if not self._world.network.is_cut(source, target):
                arrive(*what)

        schedule.after(schedule.draw(*_DELAY_NS), arrived)

    def _arrive(
        self, asker: WorldProcess, host: str, request: Any, answer: asyncio.Future[Any]
    ) -> None:
        serving = self._serving.get(host)
        if serving is not None and serving[0].is_alive:
            serving[0].loop.call_soon(self._begin, *serving, request, asker, answer)

    def _begin(
        self,
        process: WorldProcess,
        handler: Handler,
        request: Any,
        asker: WorldProcess,
        answer: asyncio.Future[Any],
    ) -> None:
        task = process.loop.create_task(self._answer(process, handler, request, asker, answer))
        self._answering.add(task)
        task.add_done_callback(self._answering.discard)

    async def _answer(
        self,
        process: WorldProcess,
        handler: Handler,
        request: Any,
        asker: WorldProcess,
        answer: asyncio.Future[Any],
    ) -> None:
        told: Any = None
        try:
            told = await handler(request)
        except NotServed as refusal:
            told = refusal
        hosts = process.machine.host, asker.machine.host
        self._carry(*hosts, self._return, asker, answer, told)

    def _return(self, asker: WorldProcess, answer: asyncio.Future[Any], told: Any) -> None:
        if asker.is_alive:
            asker.loop.call_soon(_tell, answer, told)


def _tell(answer: asyncio.Future[Any], told: Any) -> None:
    if answer.done():
        return  # whoever asked has given up
    if isinstance(told, NotServed):
        answer.set_exception(told)
    else:
        answer.set_result(told)
