"""Reads that go to the same stages: the lane sends a few groups at a time, and the rest wait here.

So a stage has a short queue: commands, and reads of other callers, never wait behind more than two
groups. The size of a group depends on whether the stage did the last group in one slice.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Generic, TypeVar

from coordinator.replica.fair_queue import FairQueue, QueuePlace
from viewstamp.limits import READ_GROUP_CALLS_MAX, READ_GROUP_CALLS_MIN, READ_GROUPS_IN_FLIGHT_MAX

Item = TypeVar("Item")


@dataclass(slots=True)
class _Group(Generic[Item]):
    left: int  # how many have not left the stages
    is_full: bool
    postponed: dict[int, QueuePlace[Item]] = field(default_factory=dict)
    was_postponed: bool = False


class Lane(Generic[Item]):
    """Reads that wait for the same stages, and the groups under way."""

    def __init__(self) -> None:
        """Begin empty."""
        self.is_called = False  # a call that takes groups is scheduled
        self._waiting: FairQueue[Item] = FairQueue()
        self._weight_max = READ_GROUP_CALLS_MAX
        self._groups: list[_Group[Item]] = []
        self.group_of: dict[int, _Group[Item]] = {}

    @property
    def may_send(self) -> bool:
        """Whether a group may be taken."""
        return bool(self._waiting) and len(self._groups) < READ_GROUPS_IN_FLIGHT_MAX

    def add(self, place: QueuePlace[Item]) -> None:
        """Let a read wait for its turn."""
        self._waiting.add(place)

    def remove(self, place: QueuePlace[Item]) -> None:
        """Forget a waiting read; one that is under way counts until it has left."""
        self._waiting.remove(place)
        for group in self._groups:
            group.postponed.pop(place.token, None)

    def take(self) -> list[Item]:
        """Take the next group, which is then under way; `may_send` must hold."""
        places = self._waiting.take(self._weight_max)
        weight = sum(place.weight for place in places)
        group: _Group[Item] = _Group(len(places), is_full=2 * weight >= self._weight_max)
        self._groups.append(group)
        for place in places:
            self.group_of[place.token] = group
        return [place.item for place in places]

    def postponed(self, place: QueuePlace[Item]) -> None:
        """Put a read that its stage had no time for first, once its group is done."""
        group = self.group_of[place.token]
        group.postponed[place.token] = place
        group.was_postponed = True

    def left(self, token: int) -> None:
        """Note that a read has left the stages."""
        group = self.group_of.pop(token)
        group.left -= 1
        if not group.left:
            self._done(group)

    def _done(self, group: _Group[Item]) -> None:
        self._groups.remove(group)
        self._waiting.put_back(group.postponed.values())
        if group.was_postponed:
            self._weight_max = max(READ_GROUP_CALLS_MIN, self._weight_max // 2)
        elif group.is_full:
            self._weight_max = min(READ_GROUP_CALLS_MAX, 2 * self._weight_max)
