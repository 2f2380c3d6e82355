"""Who has partitions and who leads them, in plain words."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from testkit.composite.model_brokers import acting_broker
from testkit.composite.model_groups import ROW
from testkit.composite.model_pages import page_of
from testkit.composite.world import (
    SEEING,
    Call,
    CompositeModelState,
    CompositePlacement,
    CompositeRefused,
    Topic,
    User,
    check_revision,
)

REPLICAS_MAX: Final = 16
PER_REQUEST_MAX: Final = 1_000
# Partitions on a page: if nothing is asked for, and at most.
PAGE_SIZES: Final = (100, 1_000)
_CHANGE_TOPIC: Final = ("manage_streams", "manage_topics")


def place_new(
    world: CompositeModelState, topic: Topic, partitions: Iterable[int], call: Call
) -> None:
    """Let new partitions take their turns over the brokers, if there are any."""
    numbers = list(partitions)
    if world.brokers and numbers:
        topic.placements |= _spread(world, topic, numbers, call)
        world.turns.add("placed when created")


def place_partitions(world: CompositeModelState, request: Any, call: Call) -> dict[str, Any]:
    """Decide who has partitions; what is so already stays."""
    caller = world.caller(call)
    _, topic = world.topic(caller, request.stream, request.topic, *_CHANGE_TOPIC)
    _check_partitions(topic, [each.partition for each in request.assignments])
    if world.has_guards:
        known = [topic.placements.get(each.partition) for each in request.assignments]
        check_revision(request, max((each.revision for each in known if each), default=0))
    left_open = [
        each.partition
        for each in request.assignments
        if not each.replicas and each.partition not in topic.placements
    ]
    decided = _spread(world, topic, left_open, call) if left_open else {}
    world.turns |= {"placed later by the cluster"} if left_open else set()
    for each in request.assignments:
        if each.replicas:
            _check_named(world, each.replicas)
            placed = _assigned(world, topic, each, request.allow_data_loss, call)
            if placed is not None:
                decided[each.partition] = placed
    topic.placements |= decided
    return {}


def update_in_sync(world: CompositeModelState, request: Any, call: Call) -> dict[str, Any]:
    """Let the leader of partitions say who has all that was acknowledged."""
    caller = world.caller(call)
    leader = acting_broker(world, caller, request.broker, call).id
    _, topic = world.topic(caller, request.stream, request.topic, "send_messages")
    numbers = [each.partition for each in request.partitions]
    _check_partitions(topic, numbers)
    for number in numbers:
        _check_leads(world, topic, number, request.broker)
    decided = {}
    for each in request.partitions:
        known = topic.placements[each.partition]
        _check_told(world, known, each.in_sync, leader)
        told = [replica for replica in known.replicas if replica in each.in_sync]
        if told != known.in_sync or told != _reliable(world, known):
            decided[each.partition] = CompositePlacement(known.replicas, told, call.revision)
            gone, come = set(known.in_sync) - set(told), set(told) - set(known.in_sync)
            world.turns |= {"fell behind"} if gone else set()
            world.turns |= {"came into sync"} if come else set()
            world.turns |= {"in sync with another storage"} if told == known.in_sync else set()
    topic.placements |= decided
    return {}


def list_placements(world: CompositeModelState, request: Any, call: Call) -> dict[str, Any]:
    """Read who has and who leads the partitions of a topic."""
    _, topic = world.topic(world.caller(call), request.stream, request.topic, *sorted(SEEING))
    placed = []
    for number, placement in sorted(topic.placements.items()):
        broker, epoch = leader(world, placement)
        entry = {**_facts(placement), "partition": number, "leader": broker, "leader_epoch": epoch}
        placed.append(entry)
        world.turns |= set() if broker else {"nobody leads"}
        world.turns |= {"another one leads"} if broker not in (0, placement.replicas[0]) else set()
    page, next_token = page_of("ListPlacements", topic.id, request, placed, PAGE_SIZES)
    world.turns |= {"placements in pages"} if next_token else set()
    return {"placements": page, "next_page_token": next_token}


COMMANDS: Final[dict[str, Callable[[CompositeModelState, Any, Call], dict[str, Any]]]] = {
    "PlacePartitions": place_partitions,
    "UpdateInSync": update_in_sync,
}
QUERIES: Final[dict[str, Callable[[CompositeModelState, Any, Call], dict[str, Any]]]] = {
    "ListPlacements": list_placements,
}


def check_reporter(
    world: CompositeModelState,
    caller: User,
    topic: Topic,
    request: Any,
    partitions: Sequence[int],
    call: Call,
) -> None:
    """Refuse a report of partitions that are placed, unless it is their leader's."""
    if not world.knows_brokers:
        world.turns |= {"stamp ignored"} if request.HasField("broker") else set()
        return
    if request.HasField("broker"):
        acting_broker(world, caller, request.broker, call)
    for number in partitions:
        if number in topic.placements:
            _check_leads(world, topic, number, request.broker)
    is_placed = any(number in topic.placements for number in partitions)
    world.turns |= {"reported by the leader"} if is_placed else set()


def leader(world: CompositeModelState, placement: CompositePlacement) -> tuple[int, int]:
    """Return who leads, 0 for nobody, and the last revision at which that may have changed."""
    epoch = placement.revision
    for replica in placement.replicas:
        epoch = max(epoch, world.brokers[replica].modified)
    last_resort = 0
    for replica in placement.replicas:
        broker = world.brokers[replica]
        if replica in _reliable(world, placement) and not broker.fenced:
            if not broker.draining:
                return replica, epoch
            last_resort = last_resort or replica
    return last_resort, epoch


def placement_rows(topic: Topic) -> dict[int, list[dict[str, Any]]]:
    """Return the placements as a section has them: rows by their first partition."""
    nothing: dict[str, Any] = {"replicas": [], "in_sync": [], "revision": 0}
    rows: dict[int, list[dict[str, Any]]] = {}
    for number, placement in sorted(topic.placements.items()):
        row = rows.setdefault(number - number % ROW, [])
        row += [nothing] * (number % ROW - len(row))
        row.append(_facts(placement))
    return rows


def _facts(placement: CompositePlacement) -> dict[str, Any]:
    return {
        "replicas": placement.replicas,
        "in_sync": placement.in_sync,
        "revision": placement.revision,
    }


def _reliable(world: CompositeModelState, placement: CompositePlacement) -> list[int]:
    """Return who is in sync and has not lost its storage since."""
    return [
        replica
        for replica in placement.in_sync
        if world.brokers[replica].storage_since <= placement.revision
    ]


def _spread(
    world: CompositeModelState, topic: Topic, numbers: Sequence[int], call: Call
) -> dict[int, CompositePlacement]:
    """Give partitions to brokers that are neither fenced nor drained, in turns over the racks."""
    factor = topic.options["replication_factor"]
    racks: dict[str, list[int]] = {}
    for broker_id, broker in sorted(world.brokers.items()):
        if not broker.fenced and not broker.draining:
            racks.setdefault(broker.rack, []).append(broker_id)
    columns = [racks[rack] for rack in sorted(racks)]
    available = sum(map(len, columns))
    if factor > min(available, REPLICAS_MAX):
        raise CompositeRefused("NOT_ENOUGH_BROKERS", available=min(available, REPLICAS_MAX))
    turns = sorted(
        (place, column) for column, ids in enumerate(columns) for place in range(len(ids))
    )
    placed = {}
    for number in numbers:
        lap, turn = divmod(topic.id + number, available)
        place, column = turns[turn]
        first = columns[column][place]
        walk = _walk(columns, column, place + lap)
        replicas = [first, *(each for each in walk if each != first)][:factor]
        placed[number] = CompositePlacement(replicas, replicas, call.revision)
    return placed


def _walk(columns: list[list[int]], column: int, shift: int) -> list[int]:
    """Return all brokers: one of each rack behind the first one's, and again until none is left."""
    found = []
    for lap in range(max(map(len, columns))):
        for step in range(1, len(columns) + 1):
            ids = columns[(column + step) % len(columns)]
            if lap < len(ids):
                found.append(ids[(shift + lap) % len(ids)])
    return found


def _assigned(
    world: CompositeModelState, topic: Topic, assignment: Any, allow_data_loss: bool, call: Call
) -> CompositePlacement | None:
    """Return who gets a partition; None if all stays as it is."""
    replicas = list(assignment.replicas)
    known = topic.placements.get(assignment.partition)
    if known is None:
        world.turns.add("placed by hand")
        return CompositePlacement(replicas, replicas, call.revision)
    in_sync = [each for each in replicas if each in _reliable(world, known)]
    if not in_sync and not allow_data_loss:
        raise CompositeRefused("REPLICAS_NOT_IN_SYNC", partition=assignment.partition)
    if in_sync and replicas == known.replicas:
        return None
    world.turns.add("moved" if in_sync else "moved with loss")
    return CompositePlacement(replicas, in_sync or replicas, call.revision)


def _check_leads(world: CompositeModelState, topic: Topic, number: int, stamp: Any) -> None:
    """Refuse a broker that does not lead a partition, or has not seen that it does."""
    placement = topic.placements.get(number)
    broker, epoch = leader(world, placement) if placement is not None else (0, 0)
    if not stamp.broker_id or broker != stamp.broker_id or epoch > stamp.seen_revision:
        is_unseen = bool(broker) and broker == stamp.broker_id
        world.turns |= {"leads without knowing"} if is_unseen else set()
        raise CompositeRefused("NOT_LEADER", partition=number, leader=broker, leader_epoch=epoch)


def _check_told(
    world: CompositeModelState, known: CompositePlacement, told: Sequence[int], leading: int
) -> None:
    """Refuse a set of replicas in sync that cannot be."""
    _check_named(world, told)
    is_of_replicas = set(told) <= set(known.replicas)
    new = [each for each in told if each not in _reliable(world, known)]
    if leading not in told or not is_of_replicas or any(world.brokers[b].fenced for b in new):
        raise CompositeRefused("MALFORMED_REQUEST")


def _check_named(world: CompositeModelState, named: Sequence[int]) -> None:
    """Refuse brokers that are too few, too many, named twice, or not there."""
    if not 1 <= len(named) <= REPLICAS_MAX or len(set(named)) < len(named):
        raise CompositeRefused("MALFORMED_REQUEST")
    for broker_id in named:
        if broker_id not in world.brokers:
            raise CompositeRefused("BROKER_NOT_FOUND", broker=broker_id)


def _check_partitions(topic: Topic, numbers: Sequence[int]) -> None:
    """Refuse partitions that are too few, too many, named twice, or not there."""
    if not 1 <= len(numbers) <= PER_REQUEST_MAX:
        raise CompositeRefused("INVALID_PARTITIONS_COUNT")
    if len(set(numbers)) < len(numbers):
        raise CompositeRefused("MALFORMED_REQUEST")
    if max(numbers) >= len(topic.partitions):
        raise CompositeRefused("PARTITION_NOT_FOUND")
