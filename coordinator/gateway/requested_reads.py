"""What a caller reads, before it is started."""

from __future__ import annotations

from dataclasses import dataclass

from viewstamp.routing import Method


@dataclass(frozen=True, slots=True)
class RequestedReads:
    """Consecutive reads of one method; `gate` is demanded instead of the method's own."""

    method: Method
    count: int
    items: bytes
    gate: int | None = None
