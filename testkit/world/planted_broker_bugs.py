"""Bugs in what the product promises brokers, planted for the judge of brokers (`broker_judge`)."""

from __future__ import annotations

from typing import Any, Final

from services.runtime.liveness import Liveness
from services.streams import placement, placement_commands, watermarks
from services.streams.brokers import Broker
from services.streams.placement import Leader, Spread
from testkit.plants.core_bugs import Patch
from testkit.world.fault_plan import KINDS_OF_BROKERS
from testkit.world.options import WorldOptions
from testkit.world.plant import LED_ONCE, LIFE, PLACED_APART, RECORDS, STALE_LEADERS, WorldPlant
from viewstamp.api.brokers.v1 import brokers_pb2
from viewstamp.client import broker_leaders, broker_replicas
from viewstamp.client.broker_leaders import PartitionLeader
from viewstamp.client.lease import Lease


def read_unheard(patch: Patch) -> None:
    """A member or a broker that was not answered for its timeout goes on as if it had been."""
    patch.setattr(Lease, "is_heard", property(lambda _: True))


def lead_while_fenced(patch: Patch) -> None:
    """A session says who leads without asking who is fenced."""
    real = broker_leaders.leader_of

    def leader(placement: Any, known: Any) -> PartitionLeader:
        kept = broker_leaders.keeping(placement, known)
        return real(placement, known)._replace(broker_id=kept[0] if kept else 0)

    patch.setattr(broker_replicas, "leader_of", leader)


def believe_every_stamp(patch: Patch) -> None:
    """Whoever is not fenced may act for any partition, whatever it has seen."""
    for module in (placement_commands, watermarks):
        patch.setattr(module, "check_leads", lambda *_: None)


def believe_old_stamps(patch: Patch) -> None:
    """A leader may act although it has not seen the last change of who may lead."""
    real = placement.leader_of

    def leader(placement: Any, brokers: Any) -> Leader:
        return real(placement, brokers)._replace(epoch=0)

    patch.setattr(placement_commands, "leader_of", leader)


def overlook_lost_storage(patch: Patch) -> None:
    """A broker that comes back with another storage is in sync with what it was."""
    for module in (placement, placement_commands):
        patch.setattr(module, "keeping", lambda found, _: found.in_sync)
    for other in (broker_leaders, broker_replicas):
        patch.setattr(other, "keeping", lambda found, _: tuple(found.in_sync))


def fence_the_living(patch: Patch) -> None:
    """A service takes brokers for silent after a quarter of their timeout."""
    real = Liveness.is_silent

    def is_silent(self: Liveness[Any, Any], row: Any) -> bool:
        is_broker = isinstance(row, Broker)
        return real(self, row._replace(timeout_ms=row.timeout_ms // 4) if is_broker else row)

    patch.setattr(Liveness, "is_silent", is_silent)


def fence_nobody(patch: Patch) -> None:
    """A service never takes a broker for silent."""
    real = Liveness.is_silent

    def is_silent(self: Liveness[Any, Any], row: Any) -> bool:
        return not isinstance(row, Broker) and real(self, row)

    patch.setattr(Liveness, "is_silent", is_silent)


def spread_without_racks(patch: Patch) -> None:
    """Replicas go to the next brokers by id, in whatever racks these are."""
    patch.setattr(Broker, "rack", "")


def spread_over_the_drained(patch: Patch) -> None:
    """New partitions are given to brokers that are drained, too."""
    real = Spread.__init__

    def begin(self: Spread, brokers: Any) -> None:
        real(self, {each: row._replace(draining=False) for each, row in brokers.items()})

    patch.setattr(Spread, "__init__", begin)


def lead_while_drained(patch: Patch) -> None:
    """A session says who leads without asking who is drained."""
    real = broker_leaders.leader_of

    def leader(placement: Any, known: Any) -> PartitionLeader:
        found = {each: _undrained(row) for each, row in known.items()}
        return real(placement, found)

    patch.setattr(broker_replicas, "leader_of", leader)


def _undrained(row: brokers_pb2.Broker) -> brokers_pb2.Broker:
    other = brokers_pb2.Broker()
    other.CopyFrom(row)
    other.draining = False
    return other


# Brokers die, stand still, are cut off, and lose their disks, and nothing else goes wrong.
BROKERS: Final = WorldOptions(
    seconds=8, clients=2, callers=1, brokers=3, faults=KINDS_OF_BROKERS, lasts_ms_max=3_000
)
BROKER_PLANTS: Final = (
    WorldPlant(LED_ONCE, read_unheard, BROKERS),
    WorldPlant(LED_ONCE, lead_while_fenced, BROKERS, seed=1),
    WorldPlant(LED_ONCE, lead_while_drained, BROKERS),
    WorldPlant(STALE_LEADERS, believe_every_stamp, BROKERS),
    WorldPlant(STALE_LEADERS, believe_old_stamps, BROKERS, seed=3),
    WorldPlant(RECORDS, overlook_lost_storage, BROKERS),
    WorldPlant(LIFE, fence_the_living, BROKERS, seed=1),
    WorldPlant(LIFE, fence_nobody, BROKERS),
    WorldPlant(PLACED_APART, spread_without_racks, BROKERS),
    WorldPlant(PLACED_APART, spread_over_the_drained, BROKERS),
)
