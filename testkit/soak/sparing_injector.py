"""Carries out the one kill of a round, and spares a replica."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections import Counter
from typing import Final

from testkit.soak.kill_plan import RoundKill, victim
from testkit.torture.cluster import TortureCluster
from viewstamp.client.errors import ClientError
from viewstamp.errors import Refusal

# How long another replica may take to lead; a round without is no failure by itself.
STEP_DOWN_TIMEOUT_S: Final = 10.0
LOOK_AGAIN_S: Final = 0.2
logger = logging.getLogger(__name__)


class SparingInjector:
    """Kills one process in the middle of a round. `kills` and `faults` count what was done."""

    def __init__(
        self, cluster: TortureCluster, kill: RoundKill, number: int, seconds: float
    ) -> None:
        self.kills: Counter[str] = Counter()
        self.faults: Counter[str] = Counter()
        self._cluster = cluster
        self._kill = kill
        self._number = number
        self._seconds = seconds

    async def run(self) -> None:
        """Let half of the round pass, kill, and let the other half pass."""
        await asyncio.sleep(self._seconds / 2)
        primary = await self._cluster.primary()
        if self._kill.on_primary and primary == self._kill.spared:
            primary = await self._led_by_another()
        target = victim(self._kill, primary, self._number)
        try:
            self._cluster.replicas.replicas[target].kill(self._kill.name, signal.SIGKILL)
        except ProcessLookupError:  # it is not up again after the round before
            self.faults["nobody to kill"] += 1
        else:
            self.kills[self._kill.name] += 1
            where = "primary" if target == primary else "backup"
            self.faults[f"{self._kill.name} of a {where} killed"] += 1
        await asyncio.sleep(self._seconds / 2)

    async def _led_by_another(self) -> int | None:
        """Ask the spared replica to step down; return the primary afterwards."""
        self.faults["step-down"] += 1
        try:
            await self._cluster.admin.step_down()
        except (ClientError, Refusal) as error:
            logger.info("no step-down: %s", error)
        loop = asyncio.get_running_loop()
        ends_s = loop.time() + STEP_DOWN_TIMEOUT_S
        primary = await self._cluster.primary()
        while primary in (None, self._kill.spared) and loop.time() < ends_s:
            await asyncio.sleep(LOOK_AGAIN_S)
            primary = await self._cluster.primary()
        return primary
