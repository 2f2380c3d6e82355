"""What the steps of a story do to brokers. WHO is `b0`, or a name given by `call broker`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final

from testkit.checkers.checker import Broken
from testkit.world.schedule import NS_PER_MS
from viewstamp.client.broker_replicas import TopicPartition

if TYPE_CHECKING:
    from testkit.world.broker_keeper import BrokerKeeper
    from testkit.world.story_stage import StoryStage
    from testkit.world.world_brokers import WorldBroker, WorldBrokers
    from viewstamp.api.brokers.v1 import brokers_pb2

LEADER: Final = "leader"


class StoryBrokerActs:
    """Each method is one step; its arguments are the words of the line."""

    def __init__(self, stage: StoryStage) -> None:
        self._stage = stage
        self._names: dict[str, str] = {}

    # --- Brokers ---

    def call(self, name: str, who: str) -> None:
        """Give a broker a name: the leader of the first partition, or its first follower."""
        placement = self._placements()[0][1]
        leader = self._brokers.book.now.leader(placement).broker_id
        others = [each for each in placement.replicas if each != leader]
        chosen = leader if who == LEADER else others[0]
        self._names[name] = self._brokers.book.now.brokers[chosen].name

    def kill(self, who: str) -> None:
        """Kill a broker; it stays dead until `boot`."""
        self._who(who).kill()

    def boot(self, who: str) -> None:
        """Start a broker that is dead."""
        self._brokers.start(self._who(who))

    def lose_disk(self, who: str) -> None:
        """Kill a broker, start it with an empty disk, and wait until it is registered."""
        broker = self._who(who)
        broker.kill()
        broker.lose_disk()
        self._brokers.start(broker)
        storage_id = broker.disk.storage_id
        self._wait(lambda: self._row(broker).storage_id == storage_id, f"{who} does not register")

    def pause(self, who: str, duration_ms: str) -> None:
        """Let a broker stand still."""
        process = self._who(who).process
        assert process is not None, f"broker {who} is down"
        process.pause()
        self._stage.world.schedule.after(int(duration_ms) * NS_PER_MS, process.resume)

    # --- What the operator does ---

    def place(self, partitions: str, replicas: str) -> None:
        """Make a topic, and wait until all its partitions are led and in sync."""
        known = len(self._placements())
        self._order(lambda keeper: keeper.make_topic(int(partitions), int(replicas)))
        wanted = known + int(partitions)
        self._wait(lambda: len(self._placements()) == wanted, "the partitions are not placed")

    def drain(self, word: str | None, who: str) -> None:
        """Have a broker drained, or used again."""
        name = self._who(who).name
        self._order(lambda keeper: keeper.drain(name, draining=word is None))

    def _order(self, act: Callable[[BrokerKeeper], Awaitable[None]]) -> None:
        keeper = self._brokers.keeper
        assert keeper is not None, "the story has brokers"
        keeper.orders.append(act)
        self._wait(lambda: not keeper.orders, "what was ordered is not done")

    # --- What must come of it ---

    def records(self, count: str) -> None:
        """Wait until so many more records of each partition are acknowledged."""
        counts = self._brokers.records.counts
        wanted = {place: counts[place] + int(count) for place, _ in self._placements()}
        self._wait(
            lambda: all(counts[place] >= wanted[place] for place in wanted),
            "the records are not acknowledged",
        )

    def wait_until(self, who: str, state: str) -> None:
        """Wait for a state of a broker."""
        broker = self._who(who)
        self._wait(lambda: _STATES[state](self, broker), f"it is not so that {who} {state}")

    def expect(self, who: str, state: str) -> None:
        """A state of a broker at this moment."""
        if not _STATES[state](self, self._who(who)):
            raise Broken("the story", f"it is not so that broker {who} {state}")

    def expect_refusals(self, who: str) -> None:
        """That a broker was refused a command about partitions."""
        if not self._brokers.acts.refused[self._who(who).name]:
            raise Broken("the story", f"broker {who} was refused nothing")

    def expect_none_fenced(self) -> None:
        """That no epoch of a broker has ended."""
        if fenced := self._brokers.book.fenced_ns:
            raise Broken("the story", f"brokers and epochs {sorted(fenced)} are over")

    # --- States ---

    def is_fenced(self, broker: WorldBroker) -> bool:
        """Whether the feed says that a broker is fenced."""
        return self._row(broker).fenced

    def leads(self, broker: WorldBroker) -> bool:
        """Whether a broker leads anything, by the feed, and as it says itself if it is alive."""
        page, broker_id = self._brokers.book.now, self._row(broker).id
        is_due = any(page.leader(each).broker_id == broker_id for _, each in self._placements())
        return is_due and (broker.leads or not broker.is_alive)

    def leads_nothing(self, broker: WorldBroker) -> bool:
        """Whether a broker leads nothing, by the feed, and as it says itself."""
        page, broker_id = self._brokers.book.now, self._row(broker).id
        is_due = any(page.leader(each).broker_id == broker_id for _, each in self._placements())
        return not is_due and not (broker.is_alive and broker.leads)

    def is_in_sync(self, broker: WorldBroker) -> bool:
        """Whether a broker is in sync with all of which it has a replica."""
        page, broker_id = self._brokers.book.now, self._row(broker).id
        held = [each for _, each in self._placements() if broker_id in each.replicas]
        return all(broker_id in page.keeping(each) for each in held)

    # --- Words ---

    @property
    def _brokers(self) -> WorldBrokers:
        return self._stage.run.brokers

    def _who(self, word: str) -> WorldBroker:
        return self._brokers.named(self._names.get(word, word))

    def _row(self, broker: WorldBroker) -> brokers_pb2.Broker:
        rows = self._brokers.book.now.brokers.values()
        return next(each for each in rows if each.name == broker.name)

    def _placements(self) -> list[tuple[TopicPartition, brokers_pb2.Placement]]:
        judge = self._brokers.judge
        return [each for each in self._brokers.book.now.placements if judge.is_judged(each[0])]

    def _wait(self, holds: Callable[[], bool], otherwise: str) -> None:
        self._stage.wait(holds, otherwise)


_STATES: Final[dict[str, Callable[[StoryBrokerActs, WorldBroker], bool]]] = {
    "is fenced": StoryBrokerActs.is_fenced,
    "is not fenced": lambda acts, broker: not acts.is_fenced(broker),
    "leads": StoryBrokerActs.leads,
    "leads nothing": StoryBrokerActs.leads_nothing,
    "is in sync": StoryBrokerActs.is_in_sync,
}
