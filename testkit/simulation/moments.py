"""Rare moments that some seeds lean on: what chance alone would hardly ever bring together.

Each seed leans on some (`Leaning`) and not on others. All numbers are drawn apart, so that whatever
else happens in a seed is drawn as if there were no leanings.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING, Any, Final

from coordinator import vsr
from coordinator.vsr.messages import StartViewMessage
from testkit.partitions import between
from testkit.simulation.machine import SUPERBLOCK, Machine, SuperblockCopyOnFile
from testkit.simulation.options import FaultKind, Leaning
from testkit.simulation.wrong_clocks import WrongClocks

if TYPE_CHECKING:
    from testkit.simulation.nemesis import Nemesis
    from testkit.simulation.simulation import Simulation

# Long enough to be found unfit, as often as not.
HANG_MS: Final = (300, 2_000, 7_000, 12_000)
STALL_MS: Final = (1_000, 3_000)
# About as long as it takes to be suspected and voted out.
DOZE_MS: Final = (250, 700)
RUSH_MS: Final = 1_000
SWING_WITHIN_MS: Final = 60
RETURN_WITHIN_MS: Final = 400
DOWN_MS: Final = (300, 3_000)
LONE_INITIAL_MEMBER_SHARE: Final = 0.6
ALONE_SHARE: Final = 0.5
FORGOTTEN_SHARE: Final = 0.25
# How soon a process hears that its connections to another one broke, and how often that is wrong.
BROKEN_WITHIN_MS: Final = 30
WRONGLY_BROKEN_SHARE: Final = 0.1


class Moments:
    """The leanings of one run, beside its nemesis."""

    def __init__(self, world: Simulation, nemesis: Nemesis) -> None:
        self._world = world
        self._nemesis = nemesis
        self._random = Random(f"{world.options.seed} moments")
        self.clocks = WrongClocks(world)
        self._strikes = self._possible_strikes()
        self._is_awake = False
        self._swings = 0
        """How many primaries more have to resign as soon as they lead."""
        self._durable_views: dict[int, int] = {}
        self._parted: Machine | None = None
        """The primary that was cut off, until another one leads."""
        self._superblocks: dict[int, SuperblockCopyOnFile] = {}
        """A copy of the superblock of some replicas, from an earlier moment."""

    def _leans(self, leaning: Leaning, *faults: FaultKind) -> bool:
        """Whether the seed leans on a moment, and has the faults that make it."""
        options = self._world.options
        is_possible = options.replica_count > 1 and options.faults.issuperset(faults)
        return leaning in options.leanings and is_possible

    def _possible_strikes(self) -> list[Callable[[], str]]:
        faults = self._world.options.faults
        possible = (
            (FaultKind.CLOCK_JUMP in faults, self.clocks.strike),
            (FaultKind.HUNG_STAGE in faults, self._hang),
            (FaultKind.STEP_DOWN in faults, self._step_down),
            (FaultKind.OLDER_SUPERBLOCK in faults, self._older_superblock),
            (self._leans(Leaning.STALLED, FaultKind.SLOW_DISK), self._stall),
            (self._leans(Leaning.DOZING, FaultKind.PAUSE), self._doze),
            (self._leans(Leaning.RETURN, FaultKind.PARTITION, FaultKind.CRASH), self._part),
        )
        return [strike for is_possible, strike in possible if is_possible]

    @property
    def has_strikes(self) -> bool:
        """Whether anything comes by time."""
        return bool(self._strikes)

    # --- Life ---

    def start(self) -> None:
        """The cluster is bootstrapped: trouble may begin."""
        self._is_awake = True
        if self._strikes:
            self._world.schedule.after(self._pause_ms(), self._strike_again)

    def stop(self) -> None:
        """No fault happens any more. But to resign is none: a primary is asked to at any time."""
        self._is_awake = False
        self.clocks.stop()
        for machine in self._world.machines:
            machine.is_stage_hung, machine.stalled_until_ms = False, 0
            if machine.process is not None:
                machine.process.fate = None
        self._world.rush_until_ms = 0
        if self._leans(Leaning.PENDULUM):
            self._world.schedule.after(self._random.randint(0, SWING_WITHIN_MS), self._swing)

    def _pause_ms(self) -> int:
        return 1 + int(self._random.expovariate(1 / self._world.options.fault_interval_ms))

    def _strike_again(self) -> None:
        if self._is_awake:
            hit = self._random.choice(self._strikes)()
            if hit:
                self._world.marks.hit(hit)
            self._world.schedule.after(self._pause_ms(), self._strike_again)

    def _primary(self) -> Machine | None:
        leading = [machine for machine in self._world.machines if machine.is_leading]
        return self._random.choice(leading) if leading else None

    # --- What comes by time; each returns what to count, nothing if it did not happen ---

    def _hang(self) -> str:
        """A stage of one replica stands still, of the primary as often as not."""
        machines = self._world.machines
        primary = self._primary()
        is_primary = primary is not None and self._random.random() < 0.5
        machine = primary if is_primary and primary else self._random.choice(machines)
        if any(each.is_stage_hung for each in machines):
            return ""
        machine.is_stage_hung = True
        self._world.trace.note(machine.name, "fault", "a stage hangs")
        self._world.schedule.after(
            self._random.choice(HANG_MS), lambda: setattr(machine, "is_stage_hung", False)
        )
        return "fault hung_stage"

    def _step_down(self) -> str:
        """Ask the primary to resign, and perhaps the next one, too."""
        if self._leans(Leaning.PENDULUM) and self._random.random() < 0.5:
            self._swings = self._world.options.replica_count
        primary = self._primary()
        self.resign(primary)
        return "fault step_down" if primary is not None else ""

    def resign(self, machine: Machine | None) -> None:
        """Ask a primary to lead no more, if there is one."""
        process = None if machine is None else machine.process
        if machine is not None and process is not None:
            self._world.trace.note(machine.name, "fault", "is asked to resign")
            machine.later(0, lambda: process.step(vsr.Abdicate("asked to")))

    def _older_superblock(self) -> str:
        """Put a copy of a superblock back, once the journal tells that it is older."""
        victims = [self._world.machines[index] for index in self._nemesis.atlas.victims]
        older = [
            (machine, self._superblocks[machine.index])
            for machine in victims
            if machine.index in self._superblocks
            and self._superblocks[machine.index].sequence < machine.named_superblock
        ]
        for machine in victims:
            self._superblocks = copy_of_superblock(machine) | self._superblocks
        if older and self._nemesis.put_back(*self._random.choice(older)):
            return "fault older_superblock"
        return ""

    def _stall(self) -> str:
        """The primary's disk stands still, while all clients ask and the backups go on."""
        machine = self._primary()
        if machine is None:
            return ""
        stalled_ms = self._random.randint(*STALL_MS)
        machine.stalled_until_ms = self._world.schedule.now_ms + stalled_ms
        self._world.trace.note(machine.name, "fault", "disk stands still", stalled_ms)
        self._rush(stalled_ms)
        return "moment stalled"

    def _doze(self) -> str:
        """The primary is away for as long as it takes to be voted out, and comes back at work.

        The next one's disk is slow, so that it takes over late.
        """
        machine = self._primary()
        if machine is None or machine.process is None:
            return ""
        view = machine.process.core.view + 1
        heir = self._world.machines[view % self._world.options.replica_count]
        if FaultKind.SLOW_DISK in self._world.options.faults:
            heir.is_disk_slow = True
            self._world.schedule.after(RUSH_MS, lambda: setattr(heir, "is_disk_slow", False))
        self._rush(RUSH_MS)
        doze_ms = self._random.randint(*DOZE_MS)
        self._world.trace.note(machine.name, "fault", "dozes", doze_ms)
        machine.pause(doze_ms)
        return "moment dozing"

    def _part(self) -> str:
        """The primary is cut off, and clients give it what it can commit no more.

        It returns when another one leads, which dies then.
        """
        machine = self._primary()
        if machine is None:
            return ""
        others = [each.index for each in self._world.machines if each is not machine]
        self._world.network.cut(between([[machine.index], others]))
        self._parted = machine
        self._world.trace.note(machine.name, "fault", "is cut off, to return")
        self._rush(RUSH_MS)
        return "moment parted"

    def _return(self, parted: Machine, leader: Machine) -> None:
        if self._is_awake:
            self._world.marks.hit("moment return")
            self._world.network.cut([])
            self._rot_what_was_in_vain(parted)
            self._nemesis.keep_down(leader, self._random.choice(DOWN_MS))
            leader.crash(reason="as another one returns")

    def _rot_what_was_in_vain(self, parted: Machine) -> None:
        """Damage the first entry that an old primary could not commit, before others of its kind.

        It comes back to it: another entry is committed in its place, and those behind it stay.
        """
        process, faults = parted.process, self._world.options.faults
        is_victim = parted.index in self._nemesis.atlas.victims
        if process is None or not (is_victim and FaultKind.ROT in faults):
            return
        if self._nemesis.rot_op(parted, process.core.marks.commit_max + 1):
            self._world.marks.hit("fault rot")
            parted.crash(reason="rotten")

    def _rush(self, duration_ms: int) -> None:
        """Let all clients ask at once, and again as soon as they are answered."""
        self._world.rush_until_ms = self._world.schedule.now_ms + duration_ms
        for client in self._world.clients:
            client.start()

    # --- What comes with something else ---

    def booted(self, machine: Machine) -> None:
        """A process began: what was sent to the one before it comes once more, and late.

        A lone initial member dies where its first entry is durable, and nothing else says that it
        is one.
        """
        options = self._world.options
        if self._is_awake and self._leans(Leaning.ECHOES, FaultKind.DUPLICATION):
            self._world.network.echo(machine.index)
        is_lone = options.replica_count == 1 and FaultKind.CRASH in options.faults
        if is_lone and machine.boots == 1 and self._random.random() < LONE_INITIAL_MEMBER_SHARE:
            assert machine.process is not None
            machine.process.fate = lambda effect: isinstance(effect, vsr.PersistSuperblock)

    def ended(self, machine: Machine) -> None:
        """A process is gone: the others see their connections to it break."""
        if self._is_awake and self._leans(Leaning.BROKEN_LINKS):
            for each in self._world.machines:
                if each is not machine:
                    self._break_links(each, machine)

    def _break_links(self, machine: Machine, to_machine: Machine) -> None:
        delay_ms = self._random.randint(0, BROKEN_WITHIN_MS)

        def broke() -> None:
            if machine.process is not None:
                self._world.marks.hit("moment broken links")
                machine.process.step(vsr.Suspect(to_machine.index))

        self._world.schedule.after(delay_ms, lambda: machine.later(0, broke))

    def view_changed(self, machine: Machine) -> None:
        """A replica leaves a view, or enters one. Links to who leads may break for nothing."""
        leans_on_links = self._is_awake and self._leans(Leaning.BROKEN_LINKS)
        primary = self._primary() if leans_on_links else None
        is_wrong = primary is not None and self._random.random() < WRONGLY_BROKEN_SHARE
        if primary is not None and primary is not machine and is_wrong:
            self._break_links(machine, primary)
        if self._swings and machine.is_leading:
            self._swings -= 1
            delay_ms = self._random.randint(0, SWING_WITHIN_MS)
            self._world.schedule.after(delay_ms, lambda: self.resign(machine))
        parted = self._parted
        if parted is not None and machine.is_leading and machine is not parted:
            self._parted = None
            delay_ms = self._random.randint(0, RETURN_WITHIN_MS)
            self._world.schedule.after(delay_ms, lambda: self._return(parted, machine))
        leans = self._leans(Leaning.ALONE_WITH_ITS_LOG, FaultKind.ROT, FaultKind.CRASH)
        is_victim = machine.index in self._nemesis.atlas.voters
        if self._is_awake and leans and is_victim and self._random.random() < ALONE_SHARE:
            self.leave_alone_with_its_log(machine)

    def _swing(self) -> None:
        """Let each primary resign in turn, until it is the first one's turn again."""
        self._world.marks.hit("moment pendulum")
        self._swings = self._world.options.replica_count - 1
        self.resign(self._primary())

    def leave_alone_with_its_log(self, machine: Machine) -> None:
        """Who is about to lead dies before it says which log its view has, and its head rots.

        Its disk says that it has the log of that view, and nobody else's does.
        """
        process = machine.process
        if process is None:
            return
        core = process.core

        def fate(effect: Any) -> bool:
            is_told = isinstance(effect, vsr.Send) and isinstance(effect.message, StartViewMessage)
            is_new = core.status is vsr.ReplicaStatus.VIEW_CHANGE
            if not (is_told and is_new) or core.marks.op <= core.marks.commit_max:
                return False
            self._world.marks.hit("moment alone with its log")
            self._world.marks.hit("fault rot", int(self._nemesis.rot_last(machine)))
            return True

        process.fate = fate

    def remembered(self, machine: Machine, state: vsr.CoreState) -> None:
        """A view is durable on a disk. It may be the only one that ever remembers it.

        The others who are in that view die before they remember, and whom they missed is heard
        again. So does the one who does remember, as often as not.
        """
        before = max(self._durable_views.values(), default=0)
        self._durable_views[machine.index] = state.view
        leans = self._leans(Leaning.FORGOTTEN_VIEW, FaultKind.CRASH)
        if not (self._is_awake and leans) or state.view <= before:
            return
        if self._random.random() >= FORGOTTEN_SHARE:
            return
        self._world.marks.hit("moment forgotten view")
        self._world.network.cut([])
        for each in self._world.machines:
            each.resume()
            is_in_view = each.process is not None and each.process.core.view >= state.view
            if each is not machine and is_in_view:
                each.crash(reason="before it remembers", step=0)
        if self._random.random() < 0.5:
            # Not at once: this is in the middle of one of its steps.
            process = machine.process
            assert process is not None
            process.fate = lambda effect: isinstance(effect, vsr.Send)


def copy_of_superblock(machine: Machine) -> dict[int, SuperblockCopyOnFile]:
    """Return a copy of the superblock by the index of its machine; nothing if there is none."""
    process = machine.process
    if process is None or not process.files.superblock.exists:
        return {}
    content = machine.disk.content(SUPERBLOCK)
    return {machine.index: SuperblockCopyOnFile(content, process.files.superblock.sequence)}
