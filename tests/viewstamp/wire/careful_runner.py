"""An event loop for tests that run many small worlds, one after another."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

Result = TypeVar("Result")


class CarefulRunner:
    """Runs what a test does on one event loop, on which no callback may fail."""

    def __init__(self) -> None:
        self._runner = asyncio.Runner()
        self._failures: list[dict[str, Any]] = []
        self._runner.get_loop().set_exception_handler(self._note)

    def _note(self, _: asyncio.AbstractEventLoop, failure: dict[str, Any]) -> None:
        self._failures.append(failure)

    def run(self, action: Coroutine[Any, Any, Result]) -> Result:
        """Return the result of an action.

        An error in a protocol would only close its connection otherwise.
        """
        try:
            result = self._runner.run(action)
        finally:
            failures, self._failures = self._failures, []
        assert not failures
        return result

    def close(self) -> None:
        """End the loop."""
        self._runner.close()
