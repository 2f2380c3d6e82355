"""What the steps of a story do to the members of a cluster: they come, get votes, and go."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from coordinator import vsr
from testkit.checkers.checker import Broken
from testkit.world.story_stage import StoryStage, core_of, is_running

if TYPE_CHECKING:
    from testkit.world.replica import WorldReplica
    from testkit.world.steward import Steward


class StoryMemberActs:
    """Each method is one step; its arguments are the words of the line."""

    def __init__(self, stage: StoryStage) -> None:
        self._stage = stage

    def add(self, without: str | None) -> None:
        """Add a replica, and start its processes, unless that is left for `boot`."""
        starts = without is None

        async def add(steward: Steward) -> None:
            await steward.add(starts=starts)

        self._done(add)

    def try_to_add(self, who: str, address: str) -> None:
        """Let one replica try to add one at an address, while steps go on."""
        number = self._number(who)
        self._order(lambda steward: steward.try_to_add(number, address))

    def promote(self, who: str) -> None:
        """Give a replica a vote, and wait until it has it."""
        self._done(_promotion(self._number(who)))

    def begin_promotion(self, who: str) -> None:
        """Begin to give a replica a vote; later steps do not wait for it."""
        self._order(_promotion(self._number(who)))

    def remove(self, who: str) -> None:
        """Remove a replica, and wait until the others go on without it."""
        self._done(_removal(self._number(who)))

    def begin_removal(self, who: str) -> None:
        """Begin to remove a replica; later steps do not wait for it."""
        self._order(_removal(self._number(who)))

    def finish(self) -> None:
        """Wait until all changes of members are done."""
        orders = self._steward.orders
        self._stage.wait(lambda: not orders, "a change of members is not done")

    def retire(self, who: str) -> None:
        """Stop the machine of a removed replica, for good."""
        self._stage.who(who).retire()

    def revive(self, who: str) -> None:
        """Start the machine of a removed replica again."""
        replica = self._stage.who(who)
        replica.is_retired = False
        replica.come_back()

    def crash_before(self, who: str, what: str) -> None:
        """Kill a coordinator where it is about to record an epoch, or to tell others of one."""
        replica = self._stage.who(who)
        assert replica.process is not None, f"{who} is down"
        core = core_of(replica)
        epoch = core.membership.epoch
        kind = vsr.PersistSuperblock if what == "recording" else vsr.Send

        def fate(effect: Any) -> bool:
            return isinstance(effect, kind) and core.membership.epoch > epoch

        self._stage.faults.steps.fates[replica.process] = fate

    # --- What must have come of it ---

    def expect_members(self, voters: str, standbys: str | None) -> None:
        """Who belongs to the cluster, for every member that runs, within a while."""
        due = _numbers(voters), _numbers(standbys or "")

        def agree() -> bool:
            running = [each for each in self._stage.run.members if is_running(each)]
            known = [core_of(each).membership for each in running]
            return all((set(own.voters), set(own.standbys)) == due for own in known)

        self._stage.wait(agree, f"the members are not {due}")

    def expect_no_refusal(self) -> None:
        """That no change was refused, and none left without an answer."""
        if self._steward.refusals:
            raise Broken("the story", f"changes were refused for {self._steward.refusals}")

    def expect_refused(self, reason: str) -> None:
        """That a change was refused for a reason, and tried again."""
        if reason not in self._steward.refusals:
            raise Broken("the story", f"changes were refused for {self._steward.refusals}")

    # --- Orders ---

    @property
    def _steward(self) -> Steward:
        steward = self._stage.run.stewards.steward
        assert steward is not None, "the story says `changing 1`"
        return steward

    def _number(self, who: str) -> int:
        replica: WorldReplica = self._stage.who(who)
        return replica.number

    def _order(self, order: Callable[[Steward], Awaitable[None]]) -> None:
        self._steward.orders.append(order)

    def _done(self, order: Callable[[Steward], Awaitable[None]]) -> None:
        self._order(order)
        self.finish()


def _promotion(number: int) -> Callable[[Steward], Awaitable[None]]:
    return lambda steward: steward.promote(number)


def _removal(number: int) -> Callable[[Steward], Awaitable[None]]:
    return lambda steward: steward.remove(number)


def _numbers(words: str) -> set[int]:
    return {int(word) for word in words.split(",") if word}
