"""Offsets under arbitrary histories, against plain dictionaries.

The harness applies every step once before and takes it back, which must leave no trace, and reloads
the section after it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from tests.services.consumer_groups.harness import GROUP_NAME, GroupsHarness
from tests.services.consumer_groups.offset_requests import (
    EARLIEST,
    LATEST,
    commit,
    fetch,
    forget,
    kept_offsets,
    progress,
    refusal_of,
    report,
    reported,
    reset,
)
from viewstamp.api.consumer_groups.v1 import consumer_groups_service_pb2 as api
from viewstamp.limits import OFFSET_MAX

ALL_NAMES: Final = (GROUP_NAME, "second", "third")
NAMES: Final = st.sampled_from(ALL_NAMES)
SESSIONS: Final = st.sampled_from([11, 12])
CALLERS: Final = st.sampled_from([0, 11, 12])
# At and around the rows in which offsets are kept.
COUNTS: Final = st.sampled_from([0, 1, 2, 4, 127, 128, 129, 131, 256, 258])
PARTITIONS: Final = st.sampled_from([0, 1, 2, 3, 126, 127, 128, 130, 255, 256, 257])
OFFSETS: Final = st.integers(0, 9) | st.just(OFFSET_MAX)
CHANGES: Final = st.dictionaries(PARTITIONS, OFFSETS, min_size=1, max_size=3)
SOME: Final = st.lists(PARTITIONS, max_size=3, unique=True)
STEPS: Final = 50
EXAMPLES: Final = (40, pytest.param(100, marks=pytest.mark.long))


class OffsetsHistory(RuleBasedStateMachine):
    """Up to three groups of one topic, and members in the first of them."""

    def __init__(self) -> None:
        """Start without a group."""
        super().__init__()
        self.harness = GroupsHarness()
        self.offsets: dict[str, dict[int, int]] = {}  # by name of the group
        self.starts: dict[int, int] = {}
        self.ends: dict[int, int] = {}
        # The lowest number of partitions since all groups had heard of all changes.
        self.lowest = 0

    @initialize(count=COUNTS, ends=CHANGES, changes=CHANGES, is_busy=st.booleans())
    def begin(
        self, count: int, ends: dict[int, int], changes: dict[int, int], is_busy: bool
    ) -> None:
        """Have a topic that was reported of, groups with offsets, and members or none."""
        self.harness.partitions_count = count
        self.report(ends, are_starts=False)
        for name in ALL_NAMES:
            self.harness.create(name)
            self.offsets[name] = {}
            self.commit(name, 0, changes, is_allowed=True)
        if is_busy:
            self.join(11)
            self.settle()
            self.join(12)

    # --- Groups and their members ---

    @rule(name=NAMES)
    def replace(self, name: str) -> None:
        """Delete a group with its members, and create another one of its name."""
        request = api.DeleteConsumerGroupRequest()
        request.group.name = name
        self.harness.command("DeleteConsumerGroup", request)
        self.harness.create(name)
        self.offsets[name] = {}

    @rule(session=SESSIONS)
    def join(self, session: int) -> None:
        """Become a member; partitions come with a later proposal."""
        self.harness.join(session)

    @precondition(lambda self: self.harness.state.members)
    @rule(who=st.integers(0, 1))
    def leave(self, who: int) -> None:
        """Leave the group."""
        members = self.harness.members()
        self.harness.leave(members[who % len(members)].session_id)

    @rule()
    def settle(self) -> None:
        """Let every proposal be sequenced, and members say what they own."""
        self.harness.settle()

    @rule()
    def propose(self) -> None:
        """Let one proposal be sequenced."""
        self.harness.propose_next()

    # --- Offsets ---

    @rule(name=NAMES, caller=CALLERS, changes=CHANGES, is_allowed=st.booleans())
    def commit(self, name: str, caller: int, changes: dict[int, int], is_allowed: bool) -> None:
        """Commit as a member, or without one."""
        changes = self._near(name, changes)
        expected = self._refusal_of_commit(name, caller, changes, is_allowed)
        member = self.harness.state.member(self.harness.group(name).id, caller)
        epoch = member.member_epoch if member else 0

        def send() -> None:
            commit(
                self.harness,
                changes,
                session=caller,
                epoch=epoch,
                name=name,
                allow_out_of_range=is_allowed,
            )

        if expected:
            assert refusal_of(self.harness, send).name == expected
        else:
            send()
            self.offsets[name] |= changes

    @precondition(lambda self: self.harness.state.members)
    @rule(who=st.integers(0, 1), place=st.integers(0, 999), offset=OFFSETS)
    def commit_held(self, who: int, place: int, offset: int) -> None:
        """Commit a partition that a member owns or is giving up."""
        members = self.harness.members()
        member = members[who % len(members)]
        held = [*member.revoking, *member.owned]
        if held:
            changes = {held[place % len(held)]: offset}
            self.commit(GROUP_NAME, member.session_id, changes, is_allowed=True)

    @rule(name=NAMES, changes=CHANGES, is_allowed=st.booleans())
    def reset_to_offsets(self, name: str, changes: dict[int, int], is_allowed: bool) -> None:
        """Set offsets of a group to given ones."""
        changes = self._near(name, changes)
        expected = self._refusal_of_change(name, changes)
        if not (expected or is_allowed or self._are_inside(changes)):
            expected = "OFFSET_OUT_OF_RANGE"

        def send() -> None:
            reset(self.harness, changes, name=name, allow_out_of_range=is_allowed)

        if expected:
            assert refusal_of(self.harness, send).name == expected
        else:
            send()
            self.offsets[name] |= changes

    @rule(name=NAMES, to=st.sampled_from([EARLIEST, LATEST]), partitions=SOME)
    def reset_to_watermarks(self, name: str, to: int, partitions: list[int]) -> None:
        """Set offsets of some or all partitions to where their data begins or ends."""
        partitions = list(self._near(name, dict.fromkeys(partitions, 0)))
        expected = self._refusal_of_change(name, partitions)
        meant = partitions or range(self._known(name))
        known = self.starts if to == EARLIEST else self.ends
        if not expected and to == LATEST and any(each not in known for each in meant):
            expected = "OFFSET_OUT_OF_RANGE"

        def send() -> None:
            reset(self.harness, name=name, to=to, partitions=partitions)

        if expected:
            assert refusal_of(self.harness, send).name == expected
        else:
            send()
            self.offsets[name] |= {each: known.get(each, 0) for each in meant}

    @rule(name=NAMES, partitions=SOME)
    def forget(self, name: str, partitions: list[int]) -> None:
        """Forget some or all offsets of a group."""
        partitions = list(self._near(name, dict.fromkeys(partitions, 0)))
        expected = self._refusal_of_change(name, partitions)

        def send() -> None:
            forget(self.harness, partitions, name=name)

        if expected:
            assert refusal_of(self.harness, send).name == expected
        else:
            send()
            for partition in partitions or list(self.offsets[name]):
                self.offsets[name].pop(partition, None)

    # --- The topic ---

    @rule(changes=CHANGES, are_starts=st.booleans())
    def report(self, changes: dict[int, int], are_starts: bool) -> None:
        """Tell of data that was written or dropped, in partitions that there are."""
        count = self.harness.partitions_count
        told = {partition % count: offset for partition, offset in changes.items()} if count else {}
        report(self.harness, told, are_starts=are_starts)
        for partition, offset in told.items():
            if are_starts and not offset:
                continue  # nothing was dropped
            for known in (self.starts, self.ends) if are_starts else (self.ends,):
                known[partition] = max(offset, known.get(partition, 0))

    @rule(count=COUNTS)
    def change_partitions(self, count: int) -> None:
        """Grow or shrink the topic."""
        self.lowest = min(self.lowest, count) if self.harness.state.chores else count
        self.harness.change_partitions(count)
        for known in (self.starts, self.ends, *self.offsets.values()):
            for partition in [each for each in known if each >= count]:
                del known[partition]

    # --- Promises ---

    @invariant()
    def offsets_are_those_of_the_model(self) -> None:
        """Check what callers are told of each group."""
        for name, offsets in self.offsets.items():
            found = [
                (each.partition, *progress(each)) for each in fetch(self.harness, name=name).offsets
            ]
            assert found == [self._progress(each, offsets[each]) for each in sorted(offsets)]

    @invariant()
    def nothing_else_is_kept(self) -> None:
        """Check that the rows have no other offsets, once no group has anything left to forget."""
        expected = {
            (self.harness.group(name).id, partition): offset
            for name, offsets in self.offsets.items()
            for partition, offset in offsets.items()
        }
        kept = kept_offsets(self.harness)
        assert kept.items() >= expected.items()
        if not self.harness.state.chores:
            assert kept == expected

    @invariant()
    def watermarks_are_those_of_the_model(self) -> None:
        """Check what is known of the topic."""
        expected = {each: (self.starts.get(each, 0), end) for each, end in self.ends.items()}
        assert reported(self.harness) == expected

    # --- The model ---

    def _known(self, name: str) -> int:
        """Return how many partitions a group may have offsets of."""
        kept = self.harness.partitions_count
        if self.harness.state.chores:
            kept = min(kept, self.lowest)
        return min(kept, self.harness.group(name).partitions_count)

    def _near(self, name: str, changes: dict[int, int]) -> dict[int, int]:
        """Return changes of partitions that a group knows, and of the first that it does not."""
        count = self._known(name) + 1
        return {partition % count: offset for partition, offset in changes.items()}

    def _refusal_of_commit(
        self, name: str, caller: int, changes: dict[int, int], is_allowed: bool
    ) -> str:
        """Return for what reason a commit will be refused; empty if it will not."""
        unknown = self._refusal_of_partitions(name, changes)
        if unknown:
            return unknown
        members = {member.session_id: member for member in self.harness.members(name)}
        if members:
            if caller not in members:
                return "NOT_A_MEMBER" if caller else "SESSION_REQUIRED"
            held = {*members[caller].owned, *members[caller].revoking}
            if not changes.keys() <= held:
                return "PARTITION_NOT_OWNED"
        return "" if is_allowed or self._are_inside(changes) else "OFFSET_OUT_OF_RANGE"

    def _refusal_of_change(self, name: str, partitions: Iterable[int]) -> str:
        """Return for what reason an administrator will be refused; empty if it will not."""
        if self.harness.members(name):
            return "GROUP_NOT_EMPTY"
        return self._refusal_of_partitions(name, partitions)

    def _refusal_of_partitions(self, name: str, partitions: Iterable[int]) -> str:
        """Return why a group cannot have offsets of partitions; empty if it can."""
        highest = max(partitions, default=-1)
        if highest < self._known(name):
            return ""
        is_there = highest < self.harness.partitions_count
        return "OVERLOADED" if is_there else "PARTITION_NOT_FOUND"

    def _are_inside(self, changes: dict[int, int]) -> bool:
        """Return whether offsets lie within what was reported."""
        return all(
            self.starts.get(partition, 0) <= offset <= self.ends.get(partition, OFFSET_MAX)
            for partition, offset in changes.items()
        )

    def _progress(
        self, partition: int, offset: int
    ) -> tuple[int, int, int | None, int | None, int | None]:
        """Return what callers should be told of a partition."""
        if partition not in self.ends:
            return partition, offset, None, None, None
        start, end = self.starts.get(partition, 0), self.ends[partition]
        left = range(max(offset, start), end) if offset < end else range(0)
        return partition, offset, start, end, left.stop - left.start


def run(examples: int) -> None:
    """Let histories happen."""
    policy = settings(max_examples=examples, stateful_step_count=STEPS, deadline=None)
    run_state_machine_as_test(OffsetsHistory, settings=policy)


@pytest.mark.parametrize("examples", EXAMPLES)
def test_any_history_of_offsets_is_that_of_dictionaries(examples: int) -> None:
    """Groups that hear of changes at once tell offsets and watermarks as the model has them."""
    run(examples)


@pytest.mark.parametrize("examples", EXAMPLES)
def test_any_history_is_that_of_dictionaries_while_work_is_put_off(
    put_off: None, examples: int
) -> None:
    """Groups that hear of changes later tell nothing else, whenever they are asked."""
    run(examples)
