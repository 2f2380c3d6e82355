"""What happened, kept cheaply while all is well and written out when it is not."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any, Final

TRACE_LINES: Final = 400
_BYTES_SHOWN: Final = 4
_ITEMS_SHOWN: Final = 9
_HIDDEN: Final = ("cluster_id", "from_replica")


class Trace:
    """The last things that happened. They become text only when they are read."""

    def __init__(self, clock: Callable[[], int], *, is_verbose: bool = False) -> None:
        self._clock = clock
        self._kept: deque[tuple[int, str, str, tuple[Any, ...]]] = deque(maxlen=TRACE_LINES)
        self._is_verbose = is_verbose

    def note(self, who: str, what: str, *details: Any) -> None:
        """Keep that something happened to `who`."""
        line = (self._clock(), who, what, details)
        self._kept.append(line)
        if self._is_verbose:
            print(_written(*line))

    def lines(self, last: int = TRACE_LINES) -> list[str]:
        """The last lines, oldest first."""
        return [_written(*line) for line in list(self._kept)[-last:]]


def _written(at_ms: int, who: str, what: str, details: tuple[Any, ...]) -> str:
    return f"{at_ms:>8} {who:<4} {what:<9} {' '.join(map(shown, details))}".rstrip()


def shown(thing: Any) -> str:
    """A short form of whatever passes through a replica."""
    if isinstance(thing, bytes):
        return thing[:_BYTES_SHOWN].hex() or "-"
    if isinstance(thing, Enum):
        return str(thing.value)
    if hasattr(thing, "header"):
        return shown(thing.header)
    if hasattr(thing, "first_revision") and hasattr(thing, "parent"):
        return f"{thing.op}@{thing.view}:{shown(thing.checksum)}<{shown(thing.parent)}"
    if is_dataclass(thing):
        return _shown_fields(thing)
    if isinstance(thing, tuple | list):
        items = [shown(item) for item in thing[:_ITEMS_SHOWN]]
        return f"[{' '.join(items)}{' ...' if len(thing) > _ITEMS_SHOWN else ''}]"
    return str(thing)


def _shown_fields(thing: Any) -> str:
    name = type(thing).__name__.removesuffix("Message")
    inside = [
        shown(value) if hasattr(value, "header") else f"{field.name}={shown(value)}"
        for field in fields(thing)
        if field.name not in _HIDDEN and (value := getattr(thing, field.name)) is not None
    ]
    return f"{name}({' '.join(inside)})"
