"""When the members of one client show life: together, and at once when the cluster says so."""

from __future__ import annotations

from collections.abc import Callable, Iterable


class Pulse:
    """The moments at which the holders of one client show life, so that they do so together.

    Signs of life that a client has at the same time share a message, and cost the cluster a
    fraction of what they cost alone. The moments of one interval are so far apart, counted from the
    first one of all, which differs from client to client.
    """

    def __init__(self) -> None:
        self._begin_s: float | None = None
        self._followers: dict[int, list[Callable[[], None]]] = {}

    def pause_s(self, now_s: float, interval_s: float) -> float:
        """Return the time to the next moment of an interval, which is never longer than that."""
        if self._begin_s is None:
            self._begin_s = now_s
        return interval_s - (now_s - self._begin_s) % interval_s

    def follow(self, group_id: int, wake: Callable[[], None]) -> None:
        """Call `wake` whenever the cluster says that a place in the group has changed."""
        self._followers.setdefault(group_id, []).append(wake)

    def leave(self, group_id: int, wake: Callable[[], None]) -> None:
        """Do not call `wake` any more, if it was to be called."""
        left = [each for each in self._followers.pop(group_id, ()) if each != wake]
        if left:
            self._followers[group_id] = left

    def noticed(self, group_ids: Iterable[int]) -> None:
        """Take what the cluster says: whoever has a place in one of these groups shows life."""
        for group_id in group_ids:
            for wake in self._followers.get(group_id, ()):
                wake()
