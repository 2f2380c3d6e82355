"""One round of a soak: the callers of torture and members, one kill, the verdict, and the end of
all that was made."""

from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final

from testkit.soak.kill_plan import RoundKill
from testkit.soak.offset_ledger import CommittingMember, GroupPlace, OffsetLedger
from testkit.soak.sparing_injector import SparingInjector
from testkit.torture.cluster import TortureCluster
from testkit.torture.keys import STREAM, USER
from testkit.torture.round import FAILURES, RoundCaller, RoundFigures, TortureRound, in_words

MEMBERS: Final = 2


class SoakRound(TortureRound):
    """A round on a cluster that has the group of `place`; `run` leaves no more than it found."""

    def __init__(
        self,
        cluster: TortureCluster,
        number: int,
        kill: RoundKill,
        seconds: float,
        ledger: OffsetLedger,
        directory: Path,
    ) -> None:
        """`number` is unique for the cluster, and the seed."""
        super().__init__(
            cluster,
            number,
            number,
            lambda _: SparingInjector(cluster, kill, number, seconds),
            directory,
        )
        self._admin = cluster.admin
        self._ledger = ledger

    async def further_callers(self, stack: AsyncExitStack) -> list[RoundCaller]:
        """Return members that commit offsets, each with a client of its own."""
        return [
            CommittingMember(await self.client(stack), GroupPlace(), self._ledger, self.recorder)
            for _ in range(MEMBERS)
        ]

    async def run(self) -> RoundFigures:
        """Run the round, and delete what it made. Raises nothing of FAILURES."""
        figures = await super().run()
        try:
            await self._delete_places()
        except FAILURES as error:
            figures.findings.append(f"the round could not be cleared away: {in_words(error)}")
        return figures

    async def _delete_places(self) -> None:
        for place in self.places:
            if place.kind == STREAM:  # with its topics and their groups
                await self._admin.streams.delete(*place.ids)
            elif place.kind == USER:
                await self._admin.users.delete(*place.ids)
