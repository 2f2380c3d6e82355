"""What the steps of a story do to a cluster."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Any, Final

from coordinator import vsr
from coordinator.vsr.messages import DoViewChangeMessage, PrepareMessage
from testkit.checkers.checker import Broken
from testkit.memory_storage import Loss
from testkit.partitions import between, partition
from testkit.world.branches import STEP_TORN, TRANSFER_BEGAN
from testkit.world.replica import SUPERBLOCK
from testkit.world.rot import make_op_unreadable, rot_last, rot_op
from testkit.world.schedule import NS_PER_MS, NS_PER_S
from testkit.world.snapshot_copies import (
    directory_of,
    durable_files,
    spoil_all,
    spoil_one,
    whole_names,
)
from testkit.world.steps import after_effects
from testkit.world.story_broker_acts import StoryBrokerActs
from testkit.world.story_member_acts import StoryMemberActs
from testkit.world.story_scrub_acts import StoryScrubActs
from testkit.world.story_stage import WAIT_MS, StoryStage, core_of, is_running
from viewstamp.format.manifest import root_of
from viewstamp.format.record import SECTOR_BYTES
from viewstamp.format.superblock import COPY_BYTES

if TYPE_CHECKING:
    from testkit.world.disk import WorldDisk
    from testkit.world.process import WorldProcess
    from testkit.world.replica import WorldReplica

_SLOWNESS: Final = 30
_CALLS_AT_REST: Final = 3
_CHANGES_PER_READ: Final = 4
_SHAPES: Final = {"isolate": "isolated"}


class StoryActs:
    """Each method is one step; its arguments are the words of the line."""

    def __init__(self, stage: StoryStage) -> None:
        self.brokers = StoryBrokerActs(stage)
        self.scrubbers = StoryScrubActs(stage)
        self.members = StoryMemberActs(stage)
        self._stage = stage
        self._world = stage.world
        self._random = Random(f"story {stage.world.seed}")
        self._superblocks: dict[int, bytes] = {}
        self._volumes: dict[int, WorldDisk] = {}

    # --- Load and time ---

    def call(self, name: str, who: str) -> None:
        """Give a replica a name, for later."""
        self._stage.names[name] = self._stage.who(who)

    def ask(self, calls: str) -> None:
        """Let clients make changes, and some reads, without waiting for the answers."""
        self._stage.demands.changes.left += int(calls)
        self._stage.demands.reads.left += int(calls) // _CHANGES_PER_READ

    def answers(self) -> None:
        """Wait until every change is answered."""
        changes = self._stage.demands.changes
        self._stage.wait(lambda: changes.is_met, "not every call was answered")

    def write(self, calls: str) -> None:
        """Let clients make changes, and wait for the answers."""
        self.ask(calls)
        self.answers()

    def run(self, duration_ms: str) -> None:
        """Let time pass."""
        self._stage.pass_time(int(duration_ms))

    def settle(self) -> None:
        """Heal everything; all replicas must come to the same rest, and answer."""
        self._stage.faults.end()
        self._world.network.heal_all()
        for replica in self._stage.run.replicas:
            replica.machine.jump_ns = 0
            replica.come_back()
            for service in replica.services.values():
                service.resume()
        self.write(str(_CALLS_AT_REST))
        self._stage.wait(self._are_at_rest, "the replicas do not come to the same rest")

    def _are_at_rest(self) -> bool:
        replicas = self._stage.run.members
        if not all(is_running(replica) for replica in replicas):
            return False
        cores = [core_of(replica) for replica in replicas]
        is_normal = all(core.status is vsr.ReplicaStatus.NORMAL for core in cores)
        return is_normal and len({(core.view, core.marks.commit_max) for core in cores}) == 1

    # --- Processes and power ---

    def crash(self, who: str) -> None:
        """Kill a coordinator; it stays down until `boot`."""
        replica = self._stage.who(who)
        replica.is_wanted = False
        if replica.process is not None:
            replica.process.kill()

    def stop(self, who: str) -> None:
        """Tell a coordinator to end in order, and wait until it has; it comes back by itself."""
        replica = self._stage.who(who)
        process = replica.process
        assert process is not None, f"{who} is down"
        assert replica.stop(), f"{who} is not open yet"
        self._stage.wait(lambda: not process.is_alive, f"{who} does not end")

    def crash_within(self, who: str, effects: str) -> None:
        """Kill a coordinator after so many more effects; it comes back by itself."""
        process = self._stage.who(who).process
        assert process is not None, f"{who} is down"
        self._stage.faults.steps.fates[process] = after_effects(int(effects))

    def power(self, who: str) -> None:
        """Take the power from a machine, or from all; they stay down until `boot`."""
        for replica in self._stage.all_or(who):
            replica.stay_away()
            replica.machine.disk.crash(Loss.PARTLY, self._random.getrandbits(32))

    def end_after_steps(self, how: str, who: str, steps: str) -> None:
        """End a coordinator, or the power of its machine, so many steps of its disk from now.

        It comes back by itself.
        """
        replica = self._stage.who(who)
        assert replica.process is not None, f"{who} is down"
        self._end_after_steps(how, replica, replica.process, int(steps))

    def end_in_transfer(self, how: str, who: str, steps: str) -> None:
        """Do the same so many steps into the next state transfer."""
        replica = self._stage.who(who)

        def logged(process: WorldProcess, message: str) -> None:
            if process is replica.process and message == TRANSFER_BEGAN:
                self._world.logged.remove(logged)
                self._end_after_steps(how, replica, process, int(steps))

        self._world.logged.append(logged)

    def _end_after_steps(
        self, how: str, replica: WorldReplica, process: WorldProcess, steps: int
    ) -> None:
        branches, disk = self._stage.faults.ground.branches.counts, replica.machine.disk
        disk.crash_at = last = disk.steps + steps

        def killed() -> None:
            branches[STEP_TORN] += disk.steps >= last
            if how == "power":
                disk.crash(Loss.PARTLY, self._random.getrandbits(32))

        process.killed.append(killed)

    def boot(self, who: str) -> None:
        """Start a machine, or all."""
        for replica in self._stage.all_or(who):
            replica.come_back()

    def pause(self, who: str, duration_ms: str) -> None:
        """Let a coordinator stand still."""
        process = self._stage.who(who).process
        assert process is not None, f"{who} is down"
        process.pause()
        self._world.schedule.after(int(duration_ms) * NS_PER_MS, process.resume)

    def hang(self, who: str) -> None:
        """Let the services of a replica stand still, until `settle`."""
        for service in self._stage.who(who).services.values():
            service.pause()

    def resign(self, who: str) -> None:
        """Ask a replica to lead no more."""
        self._stage.who(who).resign()

    def clock(self, who: str, where: str, by_s: str) -> None:
        """Set a clock wrong, until `settle`."""
        jump_ns = int(by_s) * NS_PER_S
        self._stage.who(who).machine.jump_ns = jump_ns if where == "ahead" else -jump_ns

    # --- Disks ---

    def slow_disk(self, who: str) -> None:
        """Make a disk slow, until `settle`."""
        self._world.slow_disks[self._stage.who(who).machine.host] = _SLOWNESS

    def stall_disk(self, who: str, duration_ms: str) -> None:
        """Let no call to a disk return for a while."""
        process = self._stage.who(who).process
        assert process is not None, f"{who} is down"
        process.stalled_until_ns = self._world.schedule.now_ns + int(duration_ms) * NS_PER_MS

    def alone(self, who: str) -> None:
        """Let a replica die before it tells a log that it is to lead with, whose head rots."""
        self._stage.faults.moments.leave_alone(self._stage.who(who), self._random, rots=True)

    def fail_syncs(self, count: str, who: str) -> None:
        """Let the next syncs of a disk fail: of the journal, and of files that may fail."""
        disk = self._stage.who(who).machine.disk
        disk.failing_syncs.update(range(disk.syncs, disk.syncs + int(count)))

    def fill_disk(self, who: str) -> None:
        """Leave no space on a disk, until `settle`."""
        disk = self._stage.who(who).machine.disk
        disk.capacity_bytes -= disk.free_bytes("")

    def lose_disk(self, who: str) -> None:
        """Replace a disk by an empty one; a machine that is down stays down."""
        self._stage.who(who).give_empty_disk()

    def copy_superblock(self, who: str) -> None:
        """Keep the superblock of a replica as it is now."""
        replica = self._stage.who(who)
        self._superblocks[replica.number] = replica.machine.disk.content(SUPERBLOCK)

    def put_superblock_back(self, who: str) -> None:
        """Put the copy in place of the superblock, with a new start."""
        replica = self._stage.who(who)
        replica.put_superblock_back(self._superblocks[replica.number])

    def copy_volume(self, who: str) -> None:
        """Keep the whole volume of a replica as it is now."""
        replica = self._stage.who(who)
        volume = replica.machine.disk.copy()
        volume.crash(Loss.DROP)
        self._volumes[replica.number] = volume

    def put_volume_back(self, who: str) -> None:
        """Put the copy in place of the volume, with a new start."""
        replica = self._stage.who(who)
        replica.replace_disk(self._volumes.pop(replica.number))

    def rot(self, which: str, who: str) -> None:
        """Damage the record of an op: a number, `last`, or `committed` (the last that is)."""
        replica = self._stage.who(who)
        if which == "last":
            is_done = rot_last(replica, self._random)
        else:
            is_done = rot_op(replica, self._op(which), self._random)
        assert is_done, f"{who} does not hold op {which}"

    def _op(self, which: str) -> int:
        """Return an op by its number, or the last committed one."""
        history = self._stage.run.observer.checks.history
        return len(history.entries) if which == "committed" else int(which)

    def make_unreadable(self, which: str, who: str) -> None:
        """Have the record of an op fail each read, until it is written again."""
        replica = self._stage.who(who)
        assert make_op_unreadable(replica, self._op(which)), f"{who} does not hold op {which}"

    def make_header_unreadable(self, who: str) -> None:
        """Have the header of the journal's first segment fail each read."""
        replica = self._stage.who(who)
        assert replica.files is not None, f"{who} is down"
        records = replica.files.journal.kept_records
        first, _ = records.segments()[0]
        replica.machine.disk.make_unreadable(records.path(first), 0, SECTOR_BYTES)

    def spoil(self, how_many: str, who: str) -> None:
        """Spoil one copy, or all copies, of each file of a replica's snapshots."""
        disk = self._stage.who(who).machine.disk
        for name in whole_names(disk):
            if how_many == "one copy":
                spoil_one(disk, name, self._random)
            else:
                spoil_all(disk, name, self._random)

    def lose_copies(self, who: str, number: str) -> None:
        """Empty one of the three copy directories of a replica that is down."""
        disk = self._stage.who(who).machine.disk
        directories = sorted({directory_of(path) for path in durable_files(disk)})
        disk.empty_directory(directories[int(number)])

    def strike_transfer(self, way: str, who: str) -> None:
        """Strike the next state transfer of a replica just after it began."""
        replica, faults = self._stage.who(who), self._stage.faults

        def logged(process: WorldProcess, message: str) -> None:
            if process is replica.process and message == TRANSFER_BEGAN:
                self._world.logged.remove(logged)
                strike = faults.transfers.strike
                self._world.schedule.after(NS_PER_MS, strike, replica, way, self._random)

        self._world.logged.append(logged)

    def rot_superblock(self, who: str) -> None:
        """Damage one copy of the superblock."""
        disk = self._stage.who(who).machine.disk
        disk.rot(SUPERBLOCK, 2 * COPY_BYTES, COPY_BYTES, self._random)

    def misdirect(self, who: str, sectors: str) -> None:
        """Let the next record of a disk land so many sectors from its place."""
        replica = self._stage.who(who)
        replica.is_untrusted = True
        replica.machine.disk.sectors_misdirected = int(sectors)

    # --- Links ---

    def cut(self, shape: str, who: str) -> None:
        """Partition: `isolate`, `deaf` (hears nobody), `mute` (nobody hears it), `bridge`."""
        chosen = self._stage.who(who).number
        members = [replica.number for replica in self._stage.run.replicas]
        self._cut(partition(_SHAPES.get(shape, shape), members, chosen, self._random))

    def cut_between(self, one: str, other: str) -> None:
        """Cut both directions between two groups, such as `r0,r1`."""
        sides = [[self._stage.who(who).number for who in side.split(",")] for side in (one, other)]
        self._cut(between(sides))

    def _cut(self, links: list[tuple[int, int]]) -> None:
        self._world.network.heal_all()
        self._stage.faults.ground.cut(links)

    def swallow(self, who: str) -> None:
        """Lose all messages of other replicas to one, on connections that live, until `settle`."""
        self._stage.run.mail.swallow(self._ways_to(who), WAIT_MS)

    def swallow_votes(self, who: str, duration_ms: str) -> None:
        """Lose the votes for the view of one replica for a while."""
        ways = self._ways_to(who)
        self._stage.run.mail.swallow(ways, int(duration_ms), DoViewChangeMessage)

    def swallow_entries(self, who: str, duration_ms: str) -> None:
        """Lose the entries that one replica sends for a while."""
        ways = [(there, here) for here, there in self._ways_to(who)]
        self._stage.run.mail.swallow(ways, int(duration_ms), PrepareMessage)

    def _ways_to(self, who: str) -> list[tuple[int, int]]:
        target, replicas = self._stage.who(who).number, self._stage.run.replicas
        return [(each.number, target) for each in replicas if each.number != target]

    def mend(self) -> None:
        """End the partition."""
        self._world.network.heal_all()

    # --- State ---

    def diverge(self, who: str) -> None:
        """Let a replica's answers be others than the log leads to, from the next entry on."""
        replica = self._stage.who(who)
        assert replica.coordinator is not None, f"{who} is down"
        digests = replica.coordinator.driver.mux.digests
        add = digests.add

        def added(op: int, answer: bytes | bytearray) -> None:
            add(op, bytes(answer) + b"odd")

        digests.add = added  # type: ignore[method-assign]
        self._mark(who)

    def diverge_in_snapshots(self, who: str) -> None:
        """Let a replica's next snapshots differ, which no answer shows."""
        replica = self._stage.who(who)
        assert replica.files is not None, f"{who} is down"
        snapshots = replica.files.snapshots
        write = snapshots.write_manifest

        def written(manifest: Any) -> Any:
            manifest.timestamp += 1
            manifest.root = root_of(manifest)
            return write(manifest)

        snapshots.write_manifest = written  # type: ignore[method-assign]
        self._mark(who)

    def _mark(self, who: str) -> None:
        self._stage.who(who).has_diverged = True
        self._stage.run.may_diverge = True

    # --- What must have come of it ---

    def expect_primary(self, word: str | None, who: str) -> None:
        """Who leads, or does not."""
        primary = self._stage.primary()
        is_so = primary is self._stage.who(who)
        self._expect(is_so == (word is None), f"replica {primary.number} is primary")

    def expect_view(self, relation: str | None, view: str) -> None:
        """The view of the primary."""
        found = core_of(self._stage.primary()).view
        holds = found > int(view) if relation else found == int(view)
        self._expect(holds, f"the view is {found}")

    def expect_status(self, who: str, status: str) -> None:
        """The status of a replica."""
        replica = self._stage.who(who)
        found = core_of(replica).status.value if is_running(replica) else "down"
        if status == "refused":
            found = status if replica.is_refused else found
        self._expect(found == status, f"{who} is {found}")

    def expect_snapshots(self, who: str) -> None:
        """That a replica has snapshots."""
        files = self._stage.who(who).files
        assert files is not None, f"{who} is down"
        self._expect(bool(files.snapshots.generations()), f"{who} has no snapshot")

    def expect_log_time(self, within_s: str) -> None:
        """That the last entry was made just now, by true time."""
        for replica in self._stage.run.members:
            ahead_us = core_of(replica).log_time_us - self._world.true_us
            is_near = abs(ahead_us) * 1_000 <= int(within_s) * NS_PER_S
            self._expect(is_near, f"replica {replica.number} is {ahead_us} us ahead")

    def expect_mark(self, word: str | None, name: str) -> None:
        """That a branch was taken, or something logged, at least once, or never."""
        marks = self._stage.faults.ground.branches.counts + self._world.marks
        count = sum(marks[mark] for mark in marks if name in mark)
        holds = (count > 0) == (word is None)
        self._expect(holds, f"{name!r} happened {count} times; so did {sorted(marks)}")

    def _expect(self, holds: bool, found: str) -> None:
        if not holds:
            raise Broken("the story", found)
