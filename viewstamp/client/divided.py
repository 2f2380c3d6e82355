"""Reports of many partitions that cost more than one command may: sent in parts.

What a report costs depends on how far apart its partitions are and on who has them, which its
sender does not know. So the cluster's refusal divides it. Parts of neighbouring partitions cost
least. Each part is a command of its own, which does no harm: reports are about single partitions.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from typing import TypeVar

from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.errors import Refusal

T = TypeVar("T")


async def in_parts(
    send: Callable[[Mapping[int, int]], Awaitable[T]], offsets: Mapping[int, int]
) -> T:
    """Send offsets by partition, in halves wherever one command costs too much; return the last
    answer.

    Raises what `send` raises; then the parts before have taken effect.
    """
    parts = deque([sorted(offsets.items())])
    while True:
        part = parts.popleft()
        try:
            answer = await send(dict(part))
        except Refusal as refusal:
            if len(part) < 2 or not _costs_too_much(refusal):
                raise
            middle = len(part) // 2
            parts.extendleft((part[middle:], part[:middle]))
            continue
        if not parts:
            return answer


def _costs_too_much(refusal: Refusal) -> bool:
    """Return whether a command would cost too much at any time, and not only beside others."""
    is_cost = refusal.reason == Reason.REASON_COST_EXCEEDED
    return is_cost and refusal.details.get("scope") == "command"
