"""Fields of requests about brokers and placements: mostly what the leader of a partition says."""

from __future__ import annotations

from typing import Any, Final

from testkit.composite.model_groups import ROW
from testkit.composite.model_pages import page_token
from testkit.composite.model_placements import leader
from testkit.composite.offset_fillers import Chooser, OffsetFiller, any_partition
from testkit.composite.world import CompositeBroker, CompositeModelState, CompositePlacement

BROKER_NAMES: Final = ("v", "w", "x", "y", "z")
RACKS: Final = ("", "r", "r", "s")
STORAGES: Final = ("disk", "disk", "disk", "new disk")
_BAD_TEXTS: Final = ("", "x" * 256, "tab\there")
_TIMEOUTS_MS: Final = (0, 0, 6_000, 6_001, 30_000, 3_600_000, 1, 5_999, 3_600_001)
_BAD_PORTS: Final = (0, 1 << 16)
_TOO_MANY_ENDPOINTS: Final = 9
_TOO_MANY_REPLICAS: Final = 17
_NEVER_SEEN: Final = 1 << 60
_NOBODY: Final = 99


def fill_broker_name(chooser: Chooser, request: Any, context: dict[str, Any]) -> None:
    """Choose a name, mostly that of a broker that is fenced or one that is new."""
    known = list(_world(chooser).brokers.values())
    away = [broker for broker in known if broker.fenced]
    if away and not chooser.chance(3):
        request.name = chooser.pick(away).name
    else:
        names = _BAD_TEXTS if chooser.chance(30) else BROKER_NAMES
        request.name = chooser.pick(names)
    context["known"] = next((each for each in known if each.name == request.name), None)


def fill_broker_rack(chooser: Chooser, request: Any, context: dict[str, Any]) -> None:
    """Choose a rack."""
    request.rack = chooser.pick(_BAD_TEXTS[1:] if chooser.chance(30) else RACKS)


def fill_storage_id(chooser: Chooser, request: Any, context: dict[str, Any]) -> None:
    """Come with the storage of the last time, mostly."""
    known = context.get("known")
    if chooser.chance(30):
        request.storage_id = chooser.pick(("", "s" * 65))
    elif known is not None and not chooser.chance(4):
        request.storage_id = known.storage
    else:
        request.storage_id = chooser.pick(STORAGES)


def fill_endpoints(chooser: Chooser, request: Any, context: dict[str, Any]) -> None:
    """Serve somewhere, rarely where nobody can."""
    count = (
        chooser.pick((0, _TOO_MANY_ENDPOINTS)) if chooser.chance(30) else chooser.pick((1, 1, 2))
    )
    for number in range(count):
        listener = "internal" if chooser.chance(15) else f"listener {number}"
        port = chooser.pick(_BAD_PORTS) if chooser.chance(30) else 9_000 + number
        host = chooser.pick(_BAD_TEXTS) if chooser.chance(30) else "host"
        request.endpoints.add(listener=listener, host=host, port=port)


def fill_broker_timeout_ms(chooser: Chooser, request: Any, context: dict[str, Any]) -> None:
    """Choose for how long the broker may be silent, rarely a time that is not allowed."""
    request.timeout_ms = chooser.pick(_TIMEOUTS_MS if chooser.chance(3) else _TIMEOUTS_MS[:6])


def fill_broker_user_id(chooser: Chooser, request: Any, context: dict[str, Any]) -> None:
    """Name a user who may act for it, now and then."""
    if chooser.chance(4):
        request.user_id = chooser.pick([*_world(chooser).users, _NOBODY])


def fill_broker(chooser: Chooser, request: Any, context: dict[str, Any]) -> None:
    """Name a broker by id or name, or nobody."""
    known = list(_world(chooser).brokers.values())
    if request.DESCRIPTOR.name == "UnregisterBrokerRequest" and not chooser.chance(3):
        known = [each for each in known if each.fenced or each.draining] or known
    broker = context["broker"] = chooser.pick(known) if known else None
    kind = chooser.random.randrange(30)
    if kind == 0:
        request.broker.Clear()
    elif broker is not None and kind < 14:
        request.broker.id = broker.id
    elif broker is not None and kind < 28:
        request.broker.name = broker.name
    else:
        request.broker.id = chooser.random.randrange(_world(chooser).next_broker_id + 1)


def fill_draining(chooser: Chooser, request: Any, context: dict[str, Any]) -> None:
    """Drain a broker, or use it again."""
    broker = context.get("broker")
    request.draining = chooser.chance(2) if broker is None else broker.draining == chooser.chance(8)


def fill_broker_expected(chooser: Chooser, request: Any, context: dict[str, Any]) -> None:
    """Compare and set, mostly on the right revision."""
    broker = context.get("broker")
    if broker is not None and chooser.chance(4):
        request.expected_revision = broker.modified - chooser.chance(3)


def fill_stamp(chooser: Chooser, request: Any, context: dict[str, Any]) -> None:
    """Speak for a broker: mostly for one that leads partitions of the topic, in its epoch."""
    context["acting"] = _acting(chooser, request, context)
    _stamp(chooser, request.broker, context["acting"])


def fill_reporter(chooser: Chooser, request: Any, context: dict[str, Any]) -> None:
    """Speak for the broker that leads the first partition of a report; for no other nearly ever."""
    offsets = request.end_offsets if hasattr(request, "end_offsets") else request.start_offsets
    topic, world = context["topic"], _world(chooser)
    placements = topic.placements if topic is not None else {}
    placed = [each.partition for each in offsets if each.partition in placements]
    if not placed and not chooser.chance(4):
        return
    leading = leader(world, placements[placed[0]])[0] if placed else 0
    known = list(world.brokers.values())
    other = chooser.pick(known) if known else None
    broker = other if chooser.chance(8) else world.brokers.get(leading, other)
    if broker is not None or not world.knows_brokers or chooser.chance(20):
        _stamp(chooser, request.broker, broker)


def fill_assignments(chooser: Chooser, request: Any, context: dict[str, Any]) -> None:
    """Place some partitions on some brokers, mostly with one among them that is in sync."""
    topic, brokers = context["topic"], list(_world(chooser).brokers)
    placements = topic.placements if topic is not None else {}
    numbers = [
        chooser.pick(list(placements)) if placements and chooser.chance(2) else
        any_partition(chooser, topic)
        for _ in range(chooser.pick((1, 1, 2, 3)) - chooser.chance(30))
    ]  # fmt: skip
    for number in numbers if chooser.chance(20) else dict.fromkeys(numbers):
        replicas = _replicas(chooser, placements.get(number), brokers)
        request.assignments.add(partition=number, replicas=replicas)


def fill_allow_data_loss(chooser: Chooser, request: Any, context: dict[str, Any]) -> None:
    """Allow it, now and then."""
    request.allow_data_loss = chooser.chance(4)


def fill_in_sync(chooser: Chooser, request: Any, context: dict[str, Any]) -> None:
    """Tell who is in sync, mostly of partitions that the acting broker leads."""
    world, topic, acting = _world(chooser), context["topic"], context.get("acting")
    placements = topic.placements if topic is not None else {}
    own = acting.id if acting is not None else 0
    led = [number for number, each in placements.items() if leader(world, each)[0] == own]
    numbers = [
        chooser.pick(led) if led and not chooser.chance(15) else any_partition(chooser, topic)
        for _ in range(chooser.pick((1, 1, 2, 3)) - chooser.chance(30))
    ]
    for number in numbers if chooser.chance(20) else dict.fromkeys(numbers):
        told = _in_sync(chooser, placements.get(number), own)
        request.partitions.add(partition=number, in_sync=told)


def fill_placements_token(chooser: Chooser, request: Any, context: dict[str, Any]) -> None:
    """Go on at some partition, rarely in another list."""
    topic = context["topic"]
    if topic is not None and chooser.chance(3):
        parent = topic.id + chooser.chance(20)
        number = chooser.pick([0, *topic.placements])
        request.page_token = page_token("ListPlacements", parent, number)[chooser.chance(20) :]


def fill_placements_size(chooser: Chooser, request: Any, context: dict[str, Any]) -> None:
    """Choose how long a page is: briefly, so that there are several; or too long."""
    request.page_size = 1_001 if chooser.chance(30) else chooser.pick((0, 0, 1, 2, ROW))


def _world(chooser: Chooser) -> CompositeModelState:
    world: CompositeModelState = chooser.model.world
    return world


def _acting(chooser: Chooser, request: Any, context: dict[str, Any]) -> CompositeBroker | None:
    """Return who acts: mostly a leader, where the request is about a topic."""
    world, topic = _world(chooser), context["topic"]
    known = list(world.brokers.values())
    if hasattr(request, "partitions") and topic is not None and not chooser.chance(8):
        leaders = {leader(world, each)[0] for each in topic.placements.values()}
        known = [broker for broker in known if broker.id in leaders] or known
    if request.DESCRIPTOR.name == "KeepAliveBrokerRequest" and chooser.chance(2):
        known = [each for each in known if (each.id, each.epoch) in world.to_fence] or known
    return chooser.pick(known) if known else None


def _stamp(chooser: Chooser, stamp: Any, broker: CompositeBroker | None) -> None:
    """Fill a stamp, mostly with the present epoch and with all that has happened."""
    stamp.broker_id = broker.id if broker is not None else _NOBODY
    stamp.broker_epoch = (broker.epoch if broker is not None else 1) - chooser.chance(30)
    newest = chooser.model.revision
    stamp.seen_revision = newest if not chooser.chance(10) else chooser.pick((newest // 2, 0))
    if chooser.chance(60):
        stamp.seen_revision = _NEVER_SEEN


def _replicas(chooser: Chooser, known: CompositePlacement | None, brokers: list[int]) -> list[int]:
    """Return who is to have a partition: few brokers, in any order; or an impossible choice."""
    if not brokers or chooser.chance(6):
        return []
    kind = chooser.random.randrange(60)
    if kind <= 1:
        return [brokers[0]] * (2 if kind else _TOO_MANY_REPLICAS)
    chosen = chooser.random.sample(brokers, chooser.random.randrange(1, len(brokers) + 1))
    if known is not None and chooser.chance(2):
        chosen = [*chosen, *(each for each in known.in_sync if each not in chosen)]
    if known is not None and kind == 2:
        chosen = known.replicas
    return [*chosen, _NOBODY] if kind == 3 else chosen


def _in_sync(chooser: Chooser, known: CompositePlacement | None, leading: int) -> list[int]:
    """Return who is in sync: the leader, and some of the replicas; or an impossible choice."""
    kind = chooser.random.randrange(60)
    if known is None or kind == 0:
        return [[], [leading] * 2, [_NOBODY, leading]][chooser.random.randrange(3)]
    if kind <= 10:
        return list(known.in_sync)
    others = [each for each in known.replicas if each != leading and not chooser.chance(3)]
    told = others if kind == 11 else [leading, *others]
    strangers = [each for each in _world(chooser).brokers if each not in known.replicas]
    return [*told, *strangers[:1]] if kind == 12 else told


# (command, field) -> how it is filled.
BROKER_FILLERS: Final[dict[tuple[str, str], OffsetFiller]] = {
    ("RegisterBroker", "name"): fill_broker_name,
    ("RegisterBroker", "rack"): fill_broker_rack,
    ("RegisterBroker", "endpoints"): fill_endpoints,
    ("RegisterBroker", "storage_id"): fill_storage_id,
    ("RegisterBroker", "timeout_ms"): fill_broker_timeout_ms,
    ("RegisterBroker", "user_id"): fill_broker_user_id,
    ("ResignBroker", "broker"): fill_stamp,
    ("KeepAliveBroker", "broker"): fill_stamp,
    ("UpdateInSync", "broker"): fill_stamp,
    ("UpdateInSync", "partitions"): fill_in_sync,
    ("ReportPartitionEnds", "broker"): fill_reporter,
    ("TruncatePartitions", "broker"): fill_reporter,
    ("PlacePartitions", "assignments"): fill_assignments,
    ("PlacePartitions", "allow_data_loss"): fill_allow_data_loss,
    ("ListPlacements", "page_size"): fill_placements_size,
    ("ListPlacements", "page_token"): fill_placements_token,
    ("UpdateBroker", "draining"): fill_draining,
    **{(name, "broker"): fill_broker for name in ("GetBroker", "UpdateBroker", "UnregisterBroker")},
    **{
        (name, "expected_revision"): fill_broker_expected
        for name in ("UpdateBroker", "UnregisterBroker")
    },
}
