"""The chunks that cuts freeze add up to the state, and a mux started from them goes on alike."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Final

import pytest
from hypothesis import event, given, settings

from coordinator.mux.catalog_types import Restored, SnapshotState
from coordinator.mux.mux import Mux
from coordinator.mux.types import (
    Applied,
    CatalogChanged,
    CommittedPrepare,
    CutTaken,
    MuxEffect,
    SendBatch,
    Stage,
)
from testkit.composite.chains import Section, entities_of, section_from, section_of
from tests.coordinator.mux.fakes import FakeCodec, FakeStage
from tests.coordinator.mux.sequential import SERVICES
from tests.coordinator.mux.test_mux_order import MuxCluster, Story, fake_stages, story

SECTIONS: Final = ("sessions", "catalog")
SHORT: Final = 10
LONG: Final = 20


@dataclass
class MuxReplica:
    """A mux that comes to rest after every prepare, and its output."""

    mux: Mux
    stages: dict[Stage, FakeStage]
    applied: list[Applied] = field(default_factory=list)
    taken: dict[int, CutTaken] = field(default_factory=dict)
    # Op of a cut -> the sections and the other stages there.
    at_cut: dict[int, tuple[dict[str, Section], dict[Stage, FakeStage]]] = field(
        default_factory=dict
    )
    adopts: bool = False

    def play(self, prepares: Sequence[CommittedPrepare]) -> None:
        """Commit prepares one after the other."""
        for prepare in prepares:
            self._settle(self.mux.commit(prepare))
            if self.taken and max(self.taken.values(), key=_op).op == prepare.op:
                self.at_cut[prepare.op] = (self.sections(), deepcopy(self.stages))

    def sections(self) -> dict[str, Section]:
        """Return the sections as they are."""
        return {
            "sessions": section_from(self.mux.entities()),
            "catalog": section_from(self.mux.catalog.entities()),
        }

    def _settle(self, effects: list[MuxEffect]) -> None:
        """Carry out effects until there are none."""
        left = deque(effects)
        while left:
            match left.popleft():
                case SendBatch(batch=batch):
                    left.extend(self.mux.reply(self.stages[batch.stage].apply(batch)))
                case CutTaken() as taken:
                    self.taken[taken.generation] = taken
                case CatalogChanged() as changed if self.adopts:
                    for snapshot in changed.snapshots:
                        if snapshot.state is SnapshotState.COMPLETED:
                            self.mux.release(snapshot.generation)
                case Applied() as applied:
                    self.applied.append(applied)
                case _:
                    pass


def _op(taken: CutTaken) -> int:
    """Return where the cut was taken."""
    return taken.op


def digests_of(mux: Mux) -> list[bytes]:
    """Return the digests of all ops from the start of a mux on."""
    digests = (mux.digests.at(op) for op in range(mux.digests.last_op + 1))
    return [digest for digest in digests if digest is not None]


def _reference(tale: Story) -> MuxReplica:
    """Return a replica that has played the story without adopting a snapshot."""
    replica = MuxReplica(Mux(tale.routes, FakeCodec()), fake_stages())
    replica.play(tale.prepares)
    return replica


@pytest.mark.parametrize("examples", [20, pytest.param(60, marks=pytest.mark.long)])
def test_cuts_add_up_to_the_state(examples: int) -> None:
    """A chain of cuts adds up to the whole state, whatever answers, fails or is adopted when."""

    @settings(max_examples=examples)
    @given(tale=story(SHORT, LONG))
    def holds(tale: Story) -> None:
        reference = _reference(tale)
        cluster = MuxCluster(tale, fake_stages())
        cluster.run()
        event(f"{len(cluster.taken)} cuts")
        assert cluster.taken.keys() == reference.taken.keys()
        assert digests_of(cluster.mux) == digests_of(reference.mux)
        for generation, taken in cluster.taken.items():
            wanted, _ = reference.at_cut[taken.op]
            for name in SECTIONS:
                assert section_of(cluster.taken, generation, name) == wanted[name]
                assert section_of(reference.taken, generation, name) == wanted[name]

    holds()


@pytest.mark.parametrize("examples", [20, pytest.param(60, marks=pytest.mark.long)])
def test_a_restart_equals_a_full_replay(examples: int) -> None:
    """A mux restored at any cut answers, and freezes later, like the one that saw everything."""

    @settings(max_examples=examples)
    @given(tale=story(SHORT, LONG))
    def holds(tale: Story) -> None:
        reference = _reference(tale)
        for generation, taken in reference.taken.items():
            sections, stages = reference.at_cut[taken.op]
            inner = [entities_of(sections[name]) for name in SECTIONS]
            restored = Restored(
                taken.op, taken.revision, taken.feature_level, generation, inner[0], inner[1]
            )
            replica = MuxReplica(
                Mux(tale.routes, FakeCodec(), restored), deepcopy(stages), adopts=True
            )
            assert replica.sections() == sections
            replica.play(tale.prepares[taken.op :])
            assert replica.applied == reference.applied[taken.op :]
            assert replica.sections() == reference.sections()
            assert digests_of(replica.mux) == digests_of(reference.mux)[taken.op :]
            for stage in SERVICES:
                assert replica.stages[stage].seen == reference.stages[stage].seen
            chain = {**reference.taken, **replica.taken}
            for later, cut in replica.taken.items():
                assert cut.sessions.base_generation >= generation
                for name in SECTIONS:
                    assert section_of(chain, later, name) == reference.at_cut[cut.op][0][name]

    holds()
