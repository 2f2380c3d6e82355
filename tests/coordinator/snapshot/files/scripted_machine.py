"""A made-up machine with five sections, and its log, for crash tests.

The log is fixed, so the state after any op is known without any disk.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum

from blake3 import blake3

from viewstamp.format.section import Change, SectionTally

STAGES = (1, 2, 3, 4, 5)
ENTITIES_PER_STAGE = 11
KEPT = 3


class Verb(Enum):
    """What an op of the script does."""

    CHANGE = "change"
    BEGIN = "begin"
    COMPLETE = "complete"
    FAIL = "fail"
    COMPACT = "compact"
    PRUNE = "prune"


@dataclass(frozen=True, slots=True)
class Op:
    """One log entry; `number` is a generation, or how many to keep."""

    verb: Verb
    number: int = 0

    @property
    def body(self) -> bytes:
        """Return the entry's bytes in the journal."""
        return f"{self.verb.value} {self.number}".encode()


def changes(count: int) -> list[Op]:
    """Return so many commands."""
    return [Op(Verb.CHANGE)] * count


def snapshot(generation: int) -> list[Op]:
    """Return a generation that completes, with a command between its cut and its completion."""
    return [Op(Verb.BEGIN, generation), Op(Verb.CHANGE), Op(Verb.COMPLETE, generation)]


# Op 1 comes first. A restart, with damaged copies, comes before RESTART_OP.
SCRIPT: list[Op] = [
    *changes(3),
    *snapshot(1),
    *changes(2),
    *snapshot(2),
    *changes(2),
    *snapshot(3),
    Op(Verb.COMPACT),
    *changes(2),
    *[Op(Verb.BEGIN, 4), Op(Verb.CHANGE), Op(Verb.FAIL, 4)],
    *changes(1),
    *snapshot(5),
    *changes(1),
    Op(Verb.COMPACT),
    *snapshot(6),
    Op(Verb.PRUNE, 1),
    *changes(1),
    *snapshot(7),
    Op(Verb.PRUNE, 1),
    *changes(2),
]
RESTART_OP = SCRIPT.index(Op(Verb.FAIL, 4)) + 3

State = dict[int, dict[tuple[int, bytes], bytes]]


def _value(stage: int, op: int) -> bytes:
    """Return bytes that do not compress, over a sector long for some ops."""
    return blake3(b"%d %d" % (stage, op)).digest(length=40 + (op * 97 + stage * 31) % 700)


@dataclass
class ScriptedMachine:
    """The state after an op, the content of the released cut, and the generations that are kept."""

    op: int = 0
    state: State = field(default_factory=lambda: {stage: {} for stage in STAGES})
    base: State = field(default_factory=lambda: {stage: {} for stage in STAGES})
    base_generation: int = 0
    frozen: dict[int, State] = field(default_factory=dict)
    completed: list[int] = field(default_factory=list)

    def apply(self, op: Op) -> None:
        """Apply the next op."""
        self.op += 1
        match op.verb:
            case Verb.CHANGE:
                self._change()
            case Verb.BEGIN:
                self.frozen[op.number] = {
                    each: dict(section) for each, section in self.state.items()
                }
            case Verb.COMPLETE:
                self.completed = [*self.completed, op.number][-KEPT:]
            case Verb.FAIL:
                del self.frozen[op.number]
            case Verb.PRUNE:
                self.completed = self.completed[-op.number :]
            case Verb.COMPACT:
                pass

    def _change(self) -> None:
        for stage in STAGES[self.op % 2 :]:
            number = (self.op * 7 + stage * 3) % ENTITIES_PER_STAGE
            entity = (1 + number % 2, b"%04d" % number)
            if (self.op + stage) % 4 == 0:
                self.state[stage].pop(entity, None)
            else:
                self.state[stage][entity] = _value(stage, self.op)

    def release(self, generation: int) -> None:
        """Make a frozen cut the base of the next ones."""
        frozen = self.frozen.pop(generation, None)
        if frozen is not None:
            self.base, self.base_generation = frozen, generation

    def changes_of(self, generation: int, stage: int) -> Iterator[Change]:
        """Return the changes of a frozen cut against the base."""
        old, new = self.base[stage], self.frozen[generation][stage]
        for kind, key in sorted(old.keys() | new.keys()):
            yield kind, key, old.get((kind, key)), new.get((kind, key))

    def base_tally(self, stage: int) -> SectionTally:
        """Return digest and counts of the base."""
        return tally(self.base, stage)


def tally(state: State, stage: int) -> SectionTally:
    """Return digest and counts of one section."""
    counted = SectionTally()
    for (kind, key), canonical in sorted(state[stage].items()):
        counted.add((kind, key, None, canonical))
    return counted


def machine_at(op: int) -> ScriptedMachine:
    """Return the machine after so many ops of the script, computed from the log alone."""
    machine = ScriptedMachine()
    for each in SCRIPT[:op]:
        machine.apply(each)
    return machine


def cut_op(generation: int) -> int:
    """Return the op that cuts a generation."""
    return SCRIPT.index(Op(Verb.BEGIN, generation)) + 1
