"""What goes wrong in a world, in the order of its plan; in the end everything is whole again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from random import Random

from testkit.world.broker_faults import BrokerFaults
from testkit.world.disk_faults import DiskFaults
from testkit.world.fault_plan import ALL_KINDS, APART, PlannedFault
from testkit.world.ground import Ground
from testkit.world.lying_disk_faults import LyingDiskFaults
from testkit.world.mail_faults import MailFaults
from testkit.world.moments import MomentFaults
from testkit.world.network_faults import NetworkFaults
from testkit.world.process_faults import ProcessFaults
from testkit.world.schedule import NS_PER_MS
from testkit.world.snapshot_faults import SnapshotFaults
from testkit.world.steps import Steps
from testkit.world.transfer_faults import TransferFaults
from testkit.world.world_brokers import WorldBrokers


class Faults:
    """Strikes as planned until told to end; then everything is healed, started and fast again."""

    def __init__(
        self, ground: Ground, planned: Sequence[PlannedFault], brokers: WorldBrokers
    ) -> None:
        self.counts: Counter[str] = Counter()
        self.ground = ground
        self.steps = Steps(ground.replicas)
        self.moments = MomentFaults(ground, self.steps)
        self.transfers = TransferFaults(ground)
        self._planned = planned
        self._sources = (
            self.moments,
            NetworkFaults(ground),
            MailFaults(ground),
            DiskFaults(ground),
            LyingDiskFaults(ground),
            ProcessFaults(ground),
            self.transfers,
            SnapshotFaults(ground),
            BrokerFaults(ground, brokers),
        )
        self._strikes = {k: strike for each in self._sources for k, strike in each.strikes.items()}
        assert self._strikes.keys() == {*ALL_KINDS, *APART}, "each kind has one strike"

    def before_start(self) -> None:
        """Have the bootstrap struck, if that is planned; no replica runs yet."""
        planned = [fault for fault in self._planned if fault.kind == "struck_bootstrap"]
        if planned and self.moments.strike_bootstrap(Random(planned[0].seed)):
            self.counts["struck_bootstrap"] += 1

    def begin(self) -> None:
        """Begin with the plan."""
        schedule = self.ground.world.schedule
        for fault in self._planned:
            schedule.after(fault.at_ms * NS_PER_MS, self._strike, fault)

    def end(self) -> None:
        """Heal everything; no fault comes any more."""
        self.ground.is_ending = True
        self.ground.world.schedule.note("faults", "all end")
        for each in self._sources:
            each.end()

    def _strike(self, fault: PlannedFault) -> None:
        if self.ground.is_ending:
            return
        self.ground.world.schedule.note("faults", f"{fault.number}: {fault.kind}")
        self.ground.random = Random(fault.seed)
        self.counts[fault.kind] += self._strikes[fault.kind]()
