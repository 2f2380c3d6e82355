"""Rare moments: what chance alone would hardly ever bring together.

Each is planned like any other fault. When it is due, it happens at once, or waits for its moment:
a change of view, a superblock that is durable, a message that is about to leave.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from random import Random
from typing import TYPE_CHECKING, Any, Final

from coordinator import vsr
from coordinator.vsr.messages import StartViewMessage
from testkit.partitions import between
from testkit.world.ground import Ground
from testkit.world.rot import rot_last, rot_op
from testkit.world.schedule import NS_PER_MS
from testkit.world.steps import Steps, after_effects

if TYPE_CHECKING:
    from testkit.world.replica import WorldReplica

AMBUSH: Final = "ambushed at a change of view"
ALONE: Final = "alone with its log"
CORNERED: Final = "cornered"
FORGOTTEN: Final = "forgotten view"
PENDULUM: Final = "pendulum"
RETURNED: Final = "return"
STRUCK_BOOTSTRAP: Final = "bootstrap struck"
MOMENTS: Final = (AMBUSH, ALONE, CORNERED, FORGOTTEN, PENDULUM, RETURNED, STRUCK_BOOTSTRAP)

EFFECTS_BEFORE_DEATH_MAX: Final = 12
_AMBUSH_WITHIN_MS: Final = (0, 150)
_AMBUSH_LASTS_MS: Final = (20, 2_000)
_MAKE_WAY_MS: Final = (50, 500)
_CORNER_MS: Final = (0, 300)
# Long enough to start on an empty disk, to be linked and to hear a heartbeat.
_UNANSWERED_LASTS_MS: Final = (300, 900)
_UNANSWERED_MS: Final = 2_000
_CORNERED_AWAY_MS: Final = (500, 5_000)
# About as long as it takes to be suspected and voted out.
_DOZE_MS: Final = (250, 700)
_RUSH_MS: Final = (1_000, 1_000)
_HEIR_SLOWNESS: Final = 30
_RETURN_WITHIN_MS: Final = (0, 400)
_LEADER_AWAY_MS: Final = (300, 3_000)
_SWING_WITHIN_MS: Final = (0, 60)
_LONE_MEMBER_SHARE: Final = 0.6
_PAIR: Final = 2


class MomentFaults:
    """Each fault returns whether it happened, or waits from now on."""

    def __init__(self, ground: Ground, steps: Steps) -> None:
        self._ground = ground
        self._steps = steps
        self._awaited: dict[str, Random] = {}
        """The moments that are waited for, with what their faults draw from."""
        self._durable_view = 0
        self._parted: WorldReplica | None = None
        self._swings = 0
        self._has_pendulum = False
        self.strikes: Mapping[str, Callable[[], bool]] = {
            "kill_in_step": self._kill_in_step,
            "ambush": lambda: self._await(AMBUSH),
            "alone_with_its_log": self._await_alone,
            "forgotten_view": lambda: self._await(FORGOTTEN),
            "cornered": self._corner,
            "dozing": self._doze,
            "return": self._part,
            "pendulum": self._pendulum,
            "struck_bootstrap": lambda: False,  # it was, before the first fault was due
        }
        steps.seen.append(self._seen)

    def strike_bootstrap(self, random: Random) -> bool:
        """Let one replica die between two effects of its first process; return whether it may.

        It may come back as one that forgot what it said, like a lost disk, so of two none dies. A
        lone one dies where its first entry is durable and nothing else says that it is a member.
        """
        options, replicas = self._ground.options, self._ground.replicas
        if options.replicas == _PAIR:
            return False
        victims = [replica for replica in replicas if self._ground.is_victim(replica)]
        doomed = victims[0] if options.replicas > 1 else replicas[0]
        fate = after_effects(random.randrange(EFFECTS_BEFORE_DEATH_MAX))
        if options.replicas == 1 and random.random() < _LONE_MEMBER_SHARE:

            def fate(effect: Any) -> bool:
                return isinstance(effect, vsr.PersistSuperblock)

        def began(replica: WorldReplica) -> None:
            if replica is doomed and replica.process is not None:
                self._steps.began.remove(began)
                self._count(STRUCK_BOOTSTRAP)
                self._steps.fates[replica.process] = fate

        self._steps.began.append(began)
        return True

    def end(self) -> None:
        """Let no moment come any more. But to resign is no fault: primaries may do so in turn."""
        self._awaited.clear()
        self._steps.fates.clear()
        self._parted, self._swings = None, 0
        self._ground.clients.rush(is_rushing=False)
        for replica in self._ground.replicas:
            if replica.process is not None:
                replica.process.resume()
        if self._has_pendulum:
            self._swings = len(self._ground.voters) - 1
            self._resign(self._primary())

    # --- Parts ---

    def _count(self, what: str) -> None:
        self._ground.world.schedule.note("moments", what)
        self._ground.branches.counts[what] += 1

    def _await(self, moment: str) -> bool:
        self._awaited[moment] = Random(self._ground.random.getrandbits(64))
        return len(self._ground.replicas) > 1

    def _await_alone(self) -> bool:
        """Wait for a victim that is about to lead; the one that leads may have to make way."""
        self._make_way_for_victim(self._primary())
        return self._await(ALONE)

    def _make_way_for_victim(self, leader: WorldReplica | None) -> None:
        """Kill who leads in the middle of a rush if the next to lead is a victim."""
        if leader is None or leader.process is None or leader not in self._ground.voters:
            return
        if self._ground.is_victim(self._ground.heir(leader)):
            self._rush()
            self._ground.later(_MAKE_WAY_MS, leader.process.kill)

    def _primary(self) -> WorldReplica | None:
        leading = [replica for replica in self._ground.replicas if replica.is_primary]
        return self._ground.random.choice(leading) if leading else None

    def _resign(self, replica: WorldReplica | None) -> None:
        if replica is not None:
            replica.resign()

    def _rush(self) -> None:
        """Let all callers ask without a pause for a while."""
        self._ground.clients.rush(is_rushing=True)
        self._ground.later(_RUSH_MS, lambda: self._ground.clients.rush(is_rushing=False))

    def _away(self, replica: WorldReplica, bounds_ms: tuple[int, int]) -> None:
        replica.stay_away()
        self._ground.later(bounds_ms, replica.come_back)

    # --- What comes by time ---

    def _kill_in_step(self) -> bool:
        """Have a coordinator die between two effects of its core."""
        process = self._ground.replica().process
        if process is None or not process.is_alive:
            return False
        count = self._ground.random.randrange(EFFECTS_BEFORE_DEATH_MAX)
        self._steps.fates[process] = after_effects(count)
        return True

    def _corner(self) -> bool:
        """Cut off as few as may commit, hurt all of them but the primary, and let that one die.

        What they committed is intact on the dead one alone. The others, who missed it, come back,
        and must not agree with those who were hurt that it never was.
        """
        ground, primary = self._ground, self._primary()
        victims = [replica for replica in ground.voters if ground.is_victim(replica)]
        if primary is None or not victims or primary in victims:
            return False
        group = [replica.number for replica in (primary, *victims)]
        others = [each.number for each in ground.replicas if each.number not in group]
        links = between([group, others])
        self._ground.cut(links)
        # On some victims one and on others the other could be more than a cluster survives.
        hurt = self._rot_head if "rot" in ground.options.faults else self._lose_disk
        is_unanswered = hurt == self._lose_disk and ground.random.random() < 0.5
        self._count(CORNERED)

        def strike() -> None:
            if is_unanswered:
                # Who has an empty disk is heard and hears, and gets no log before the primary dies.
                ways = [(primary.number, victim.number) for victim in victims]
                ground.mail.swallow(ways, _UNANSWERED_MS, StartViewMessage)
            for victim in victims:
                hurt(victim)
            ground.later(_UNANSWERED_LASTS_MS if is_unanswered else _CORNER_MS, finish)

        def finish() -> None:
            self._ground.heal(links)
            self._away(primary, _CORNERED_AWAY_MS)

        ground.later(_CORNER_MS, strike)
        return True

    def _lose_disk(self, victim: WorldReplica) -> None:
        self._ground.note(victim, "loses its disk")
        victim.give_empty_disk()

    def _rot_head(self, victim: WorldReplica) -> None:
        """Damage the last entry, and let the process come back to it."""
        rot_last(victim, self._ground.random)
        self._ground.note(victim, "has a rotten head")
        if victim.process is not None:
            victim.process.kill()

    def _doze(self) -> bool:
        """Let the primary sleep about until it is voted out; the next one takes over late."""
        ground, primary = self._ground, self._primary()
        if primary is None or primary.process is None or primary.coordinator is None:
            return False
        host = ground.heir(primary).machine.host
        ground.world.slow_disks[host] = _HEIR_SLOWNESS
        ground.later(_RUSH_MS, ground.world.slow_disks.pop, host, None)
        self._rush()
        primary.process.pause()
        ground.later(_DOZE_MS, primary.process.resume)
        return True

    def _part(self) -> bool:
        """Cut the primary off while clients ask; it returns when the next one leads, and dies."""
        primary = self._primary()
        if primary is None or len(self._ground.replicas) == 1:
            return False
        others = [each.number for each in self._ground.replicas if each is not primary]
        self._ground.cut(between([[primary.number], others]))
        self._parted = primary
        self._awaited[RETURNED] = Random(self._ground.random.getrandbits(64))
        self._rush()
        return True

    def _return(self, parted: WorldReplica, leader: WorldReplica, random: Random) -> None:
        self._count(RETURNED)
        others = [each.number for each in self._ground.replicas if each is not parted]
        self._ground.heal(between([[parted.number], others]))
        if self._ground.is_victim(parted) and parted.coordinator is not None:
            # The first entry that it could not commit: another one is committed in its place.
            op = parted.coordinator.driver.core.marks.commit_max + 1
            process = parted.process
            if "rot" in self._ground.options.faults and rot_op(parted, op, random) and process:
                process.kill()
        self._away(leader, _LEADER_AWAY_MS)

    def _pendulum(self) -> bool:
        """Let primaries resign in turn until the first one leads again, also in the end."""
        primary = self._primary()
        if primary is None or len(self._ground.replicas) == 1:
            return False
        self._has_pendulum = True
        self._swings = len(self._ground.voters) - 1
        self._count(PENDULUM)
        self._resign(primary)
        return True

    # --- What comes with something else ---

    def _seen(self, replica: WorldReplica, what: Any) -> None:
        if isinstance(what, vsr.StatusChanged):
            self._status_changed(replica, what)
        elif isinstance(what, vsr.SuperblockDurable):
            self._remembered(replica, what.state)

    def _status_changed(self, replica: WorldReplica, what: vsr.StatusChanged) -> None:
        random = self._awaited.pop(AMBUSH, None)
        if random is not None:
            self._count(AMBUSH)
            struck = replica if random.random() < 0.5 else random.choice(self._ground.replicas)
            self._ground.random = random
            self._ground.later(_AMBUSH_WITHIN_MS, self._ambush, struck, random)
        if what.primary != replica.number:
            return
        if what.status is vsr.ReplicaStatus.NORMAL:
            self._took_over(replica)
        elif ALONE in self._awaited and self._ground.is_victim(replica):
            rots = "rot" in self._ground.options.faults
            self.leave_alone(replica, self._awaited[ALONE], rots=rots)

    def _took_over(self, leader: WorldReplica) -> None:
        if self._swings:
            self._swings -= 1
            schedule = self._ground.world.schedule
            schedule.after(schedule.draw(*_SWING_WITHIN_MS) * NS_PER_MS, self._resign, leader)
        parted, random = self._parted, self._awaited.get(RETURNED)
        if parted is not None and parted is not leader and random is not None:
            self._parted = None
            del self._awaited[RETURNED]
            self._ground.random = random
            self._ground.later(_RETURN_WITHIN_MS, self._return, parted, leader, random)
        elif ALONE in self._awaited:
            self._ground.random = self._awaited[ALONE]
            self._make_way_for_victim(leader)

    def _ambush(self, struck: WorldReplica, random: Random) -> None:
        """Kill, pause or cut off a replica in the middle of a change of view."""
        process = struck.process
        if process is None or not process.is_alive:
            return
        others = [each.number for each in self._ground.replicas if each is not struck]
        how = random.choice(("kill", "pause", "cut"))
        self._ground.random = random
        if how == "kill":
            process.kill()
        elif how == "pause":
            process.pause()
            self._ground.later(_AMBUSH_LASTS_MS, process.resume)
        else:
            links = between([[struck.number], others])
            self._ground.cut(links)
            self._ground.later(_AMBUSH_LASTS_MS, self._ground.heal, links)

    def leave_alone(self, replica: WorldReplica, random: Random, *, rots: bool) -> None:
        """Who is about to lead dies before it says which log its view has, and its head rots.

        Its disk says that it has the log of that view, and nobody else's does.
        """
        assert replica.process is not None, "it changed its view"
        assert replica.coordinator is not None, "it has a core"
        core = replica.coordinator.driver.core

        def fate(effect: Any) -> bool:
            is_told = isinstance(effect, vsr.Send) and isinstance(effect.message, StartViewMessage)
            is_new = core.status is vsr.ReplicaStatus.VIEW_CHANGE
            if not (is_told and is_new) or core.marks.op <= core.marks.commit_max:
                return False
            self._count(ALONE)
            self._awaited.pop(ALONE, None)
            if rots:
                rot_last(replica, random)
            return True

        self._steps.fates[replica.process] = fate

    def _remembered(self, replica: WorldReplica, state: vsr.CoreState) -> None:
        """A view is durable on the first disk. It may be the only one that ever remembers it.

        The others who are in that view die before they remember, and whom they missed is heard
        again. So does the one who does remember, as often as not.
        """
        before, self._durable_view = self._durable_view, max(self._durable_view, state.view)
        if state.view <= before or FORGOTTEN not in self._awaited:
            return
        random = self._awaited.pop(FORGOTTEN)
        self._count(FORGOTTEN)
        self._ground.world.network.heal_all()
        for each in self._ground.replicas:
            if each.process is None or each.coordinator is None:
                continue
            each.process.resume()
            if each is not replica and each.coordinator.driver.core.view >= state.view:
                each.process.kill()
        if random.random() < 0.5 and replica.process is not None:
            self._steps.fates[replica.process] = lambda effect: isinstance(effect, vsr.Send)
