"""How a method of the asynchronous client becomes one that blocks, with the same types.

    class BlockingStreams(BlockingFacade):
        create = Blocked(Streams.create)
        list = Iterated(Streams.list)

Nothing is written twice: signature, documentation and behaviour are those of the method.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from concurrent.futures import Future
from functools import wraps
from typing import Any, Concatenate, Final, Generic, ParamSpec, TypeVar

from viewstamp.client.loop_thread import LoopThread

P = ParamSpec("P")
S = TypeVar("S")
T = TypeVar("T")

# A list is fetched in steps of 1, 2, 4, ... items, up to so many: the first one comes at once, and
# no more is fetched in vain than was taken.
ITEMS_TOGETHER_MAX: Final = 256


class BlockingFacade:
    """Methods that block over `target`, an asynchronous object that lives in the loop's thread."""

    def __init__(self, loop: LoopThread, target: Any) -> None:
        self.loop = loop
        self.target = target


class Blocked(Generic[P, T]):
    """A method that returns what a coroutine returns."""

    def __init__(self, method: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]) -> None:
        self._method = method

    def __get__(self, facade: BlockingFacade, _: object = None) -> Callable[P, T]:
        """Return the method of a facade."""

        @wraps(self._method)
        def blocking(*args: P.args, **named: P.kwargs) -> T:
            async def step() -> T:
                return await self._method(facade.target, *args, **named)

            return facade.loop.run(step())

        return blocking


class Iterated(Generic[P, T]):
    """A method that returns an ordinary iterator in place of an asynchronous one."""

    def __init__(
        self,
        method: Callable[Concatenate[Any, P], AsyncIterator[T]],
        *,
        together_max: int = ITEMS_TOGETHER_MAX,
    ) -> None:
        self._method = method
        self._together_max = together_max

    def __get__(self, facade: BlockingFacade, _: object = None) -> Callable[P, Iterator[T]]:
        """Return the method of a facade."""

        @wraps(self._method)
        def blocking(*args: P.args, **named: P.kwargs) -> Iterator[T]:
            items = self._method(facade.target, *args, **named)
            return items_of(facade.loop, items, self._together_max)

        return blocking


class Wrapped(Generic[P, S, T]):
    """A method that returns an object which blocks in place of an asynchronous one."""

    def __init__(
        self, method: Callable[Concatenate[Any, P], S], wrap: Callable[[LoopThread, S], T]
    ) -> None:
        self._method = method
        self._wrap = wrap

    def __get__(self, facade: BlockingFacade, _: object = None) -> Callable[P, T]:
        """Return the method of a facade."""

        @wraps(self._method)
        def wrapping(*args: P.args, **named: P.kwargs) -> T:
            async def made() -> S:
                return self._method(facade.target, *args, **named)

            return self._wrap(facade.loop, facade.loop.run(made()))

        return wrapping


class BlockingIteration(Generic[T]):
    """Iterates over what comes to an asynchronous object; the calling thread waits for it.

    It reads no further than the iteration has come. An iteration that was interrupted, for example
    by Ctrl-C, loses nothing: go on with the next one. One thread at a time may iterate.
    """

    def __init__(self, loop: LoopThread, source: AsyncIterator[T]) -> None:
        self._loop = loop
        self._source = source
        # What an iteration waits for; it stays until somebody has taken it.
        self._next: Future[tuple[list[T], Exception | None]] | None = None

    def __iter__(self) -> Iterator[T]:
        return self

    def __next__(self) -> T:
        """Wait for what comes next. Raises the errors of the object; ends when it is closed."""
        if self._next is None:
            if not self._loop.is_usable:
                raise StopIteration
            self._next = self._loop.submitted(_taken(self._source, 1))
        # Ctrl-C interrupts this wait, and not the step in the other thread.
        found, failure = self._next.result()
        if found:
            self._next = None
            return found[0]
        # What has ended the iteration stays, and is raised again.
        if failure is None or isinstance(failure, StopAsyncIteration):
            raise StopIteration
        raise failure

    def end_step(self) -> None:
        """Give up what the iteration waits for."""
        waited, self._next = self._next, None
        if waited is not None:
            waited.cancel()


def items_of(loop: LoopThread, source: AsyncIterator[T], together_max: int) -> Iterator[T]:
    """Yield the items of an asynchronous iterator that lives in the loop's thread."""
    count, failure = 1, None
    while failure is None:
        found, failure = loop.run(_taken(source, count))
        yield from found
        count = min(2 * count, together_max)
    if not isinstance(failure, StopAsyncIteration):
        raise failure


async def _taken(source: AsyncIterator[T], count: int) -> tuple[list[T], Exception | None]:
    """Return up to `count` items, and what ended the iteration, if it has ended."""
    found: list[T] = []
    try:
        while len(found) < count:
            found.append(await anext(source))
    except Exception as failure:  # the end of the iteration, or an error behind these items
        return found, failure
    return found, None
