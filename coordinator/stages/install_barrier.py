"""Holds every service back until all sections of a snapshot are whole and belong together."""

from __future__ import annotations

import asyncio
from collections.abc import Collection

from coordinator.stages.base import BaseRefusedError
from viewstamp.api.domain.v1 import domain_service_pb2 as pb


class InstallBarrier:
    """What the services report of the installed sections (`base.Barrier`).

    All of `stages` are awaited once, at the start of the process; none if it starts from the empty
    state. A service that restarts later is not held back: the others already serve.
    """

    def __init__(self, stages: Collection[int]) -> None:
        self._stages = frozenset(stages)
        self._installed: dict[int, pb.Installed] = {}
        self._complete = asyncio.Event()
        if not stages:
            self._complete.set()

    async def installed(self, stage: int, installed: pb.Installed) -> None:
        """Return once the stage may serve.

        Raises BaseRefusedError if two sections of a generation contradict each other.
        """
        self._check(stage, installed)
        self._installed[stage] = installed
        if self._installed.keys() >= self._stages:
            self._complete.set()
        await self._complete.wait()

    def _check(self, stage: int, installed: pb.Installed) -> None:
        mine = {each.name: each.digest for each in installed.projections}
        for other, theirs in self._installed.items():
            if other == stage or theirs.generation != installed.generation:
                continue
            for projection in theirs.projections:
                if mine.get(projection.name, projection.digest) != projection.digest:
                    raise BaseRefusedError(
                        f"snapshot {installed.generation}: stages {stage} and {other} disagree"
                        f" about {projection.name}: {mine[projection.name].hex()} and"
                        f" {projection.digest.hex()}. The sections do not belong together; restore"
                        " another generation into a new cluster, and report this"
                    )
