"""The steps of the consensus cores of a run: who sees them, and who ends a process between two.

The product's driver carries out the effects of a step one after the other. So does a world, and
between two of them a process may die.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from testkit.world.process import WorldProcess
    from testkit.world.replica import WorldReplica

Fate = Callable[[Any], bool]
_Step = Callable[[Any, int], list[Any]]


class Steps:
    """What the cores of these replicas do, in this and later processes."""

    def __init__(self, replicas: Sequence[WorldReplica]) -> None:
        self.fates: dict[WorldProcess, Fate] = {}
        """Whether a process dies in place of an effect."""
        self.seen: list[Callable[[WorldReplica, Any], None]] = []
        """Called with each event before its step, and with each effect that was carried out."""
        self.began: list[Callable[[WorldReplica], None]] = []
        """Called when a process has a core, which has done nothing yet."""
        for replica in replicas:
            self.watch(replica)

    def watch(self, replica: WorldReplica) -> None:
        """Watch a replica, which does not run yet."""
        replica.opened.append(self._opened)

    def _opened(self, replica: WorldReplica) -> None:
        assert replica.coordinator is not None, "it was put together"
        assert replica.process is not None, "and runs"
        core = replica.coordinator.driver.core
        step = partial(self._step, replica, replica.process, core.step)
        core.step = step  # type: ignore[method-assign, assignment]
        for told in self.began:
            told(replica)

    def _step(
        self,
        replica: WorldReplica,
        process: WorldProcess,
        step: _Step,
        event: Any,
        now_ticks: int,
    ) -> Iterator[Any]:
        if self._has_died(process):
            return iter(())  # in this very turn, which still goes on to its end
        self._tell(replica, event)
        return self._carried_out(replica, process, step(event, now_ticks))

    def _carried_out(
        self, replica: WorldReplica, process: WorldProcess, effects: Iterable[Any]
    ) -> Iterator[Any]:
        for effect in effects:
            if self._has_died(process, effect):
                return
            yield effect
            self._tell(replica, effect)

    def _has_died(self, process: WorldProcess, effect: Any = None) -> bool:
        fate = self.fates.get(process)
        if effect is not None and fate is not None and fate(effect):
            del self.fates[process]
            process.kill()
        return not process.is_alive

    def _tell(self, replica: WorldReplica, what: Any) -> None:
        for told in self.seen:
            told(replica, what)


def after_effects(count: int) -> Fate:
    """Return the fate of a process that dies before it carries out effect number `count`."""
    left = count

    def dies(_: Any) -> bool:
        nonlocal left
        left -= 1
        return left < 0

    return dies
