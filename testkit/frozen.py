"""What a frozen section says has changed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from viewstamp.machine.freezing import Change


class Walked(Protocol):
    """A frozen section (`viewstamp.machine.freezing.Frozen`)."""

    def walk(self) -> Iterator[Change | None]:
        """Yield changes, and None now and then."""
        ...


def changes_of(frozen: Walked) -> Iterator[Change]:
    """Yield the changes in ascending (kind, key) order, some with equal old and new bytes."""
    return (change for change in frozen.walk() if change is not None)
