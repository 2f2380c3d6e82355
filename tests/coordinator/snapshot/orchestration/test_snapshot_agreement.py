"""When several replicas agree on a generation: a table of reports, and who counts them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from coordinator.base.roster import Roster
from coordinator.mux.stage import STAGES, Stage
from coordinator.snapshot.agreement import (
    Agreed,
    Disagreed,
    DurableReport,
    Reports,
    Waiting,
    different_sections,
    judge,
)
from tests.coordinator.snapshot.orchestration.orchestra import task, tasks

# What each replica reports, by replica: a letter is a root, a dot nothing; then the verdict.
WAITING, AGREED, DISAGREED = Waiting, Agreed, Disagreed
CASES = [
    ("a", AGREED, "0"),
    (".", WAITING, ""),
    ("a.", WAITING, "0"),
    ("aa", AGREED, "01"),
    ("ab", DISAGREED, "01"),
    ("...", WAITING, ""),
    ("a..", WAITING, "0"),
    ("aa.", AGREED, "01"),
    ("a.a", AGREED, "02"),
    (".aa", AGREED, "12"),
    ("ab.", WAITING, "01"),
    ("abb", AGREED, "12"),
    ("aab", AGREED, "01"),
    ("abc", DISAGREED, "012"),
    ("aabb", DISAGREED, "0123"),
    ("aaab", AGREED, "012"),
    ("aabb.", WAITING, "0123"),
    ("aabba", AGREED, "014"),
    ("aabbc", DISAGREED, "01234"),
]


def report(letter: str, digest: bytes = b"d" * 32) -> DurableReport:
    """Return a report with a root of one letter."""
    return DurableReport(
        letter.encode() * 32, tuple(task(stage, digest=digest) for stage in STAGES)
    )


@pytest.mark.parametrize(("reported", "verdict", "replicas"), CASES)
def test_reports_are_counted(reported: str, verdict: type, replicas: str) -> None:
    """A root of a majority of all replicas is agreed; when all have reported without one they
    disagree."""
    reports = {i: report(letter) for i, letter in enumerate(reported) if letter != "."}
    found = judge(reports, Roster.founding(0, len(reported)))
    assert type(found) is verdict
    numbers = tuple(map(int, replicas))
    match found:
        case Waiting():
            assert found == Waiting(numbers, Roster.founding(0, len(reported)).majority)
        case Agreed():
            assert found.replicas == numbers
            assert found.report is reports[numbers[0]]
        case Disagreed():
            assert [replica for replica, _ in found.roots] == list(numbers)


@pytest.mark.parametrize(
    ("reported", "verdict", "replicas"), [case for case in CASES if len(case[0]) > 1]
)
def test_standbys_have_no_say(reported: str, verdict: type, replicas: str) -> None:
    """Reports of standbys, for a root or against it, do not change the verdict."""
    for letter in "ax":
        reports = {i: report(each) for i, each in enumerate(reported) if each != "."}
        reports |= {len(reported): report(letter), len(reported) + 1: report(letter)}
        found = judge(reports, Roster.founding(0, len(reported)))
        assert type(found) is verdict
        counted = found.replicas if isinstance(found, Agreed) else tuple(map(int, replicas))
        assert counted == tuple(map(int, replicas))


@pytest.mark.parametrize(
    ("replica", "count", "suffice"),
    [(0, 1, False), (0, 2, False), (0, 3, True), (2, 2, True), (3, 3, True)],
)
def test_others_suffice(replica: int, count: int, suffice: bool) -> None:
    """The voters complete a generation without a standby; two voters need both."""
    assert Reports(Roster.founding(replica, count)).others_suffice is suffice


def test_majorities() -> None:
    """A majority is more than half of all replicas, including those that are down."""
    assert [Roster.founding(0, count).majority for count in range(1, 7)] == [1, 2, 2, 3, 3, 4]


def test_sections_that_differ_are_named() -> None:
    """Sections differ by their digests; replicas that agree may differ in sizes and layers."""
    ours = tasks()
    theirs = tuple(replace(each, size_bytes=1) for each in ours)
    assert different_sections(ours, theirs) == ()
    other = tuple(
        task(each.stage, digest=b"x" * 32) if each.stage in (Stage.USERS, Stage.CATALOG) else each
        for each in ours
    )
    assert different_sections(ours, other) == ("users", "catalog")
    assert different_sections(ours, ours[1:]) == ("sessions",)


def test_disagreement_names_every_section_that_differs_anywhere() -> None:
    """Of three different replicas all sections are named that differ between any two."""
    reports = {
        0: report("a"),
        1: DurableReport(b"b" * 32, (task(Stage.USERS, digest=b"x" * 32), *tasks()[2:])),
        2: DurableReport(
            b"c" * 32, (*tasks(*STAGES[:4]), task(Stage.CATALOG, digest=b"y" * 32), *tasks()[5:])
        ),
    }
    found = judge(reports, Roster.founding(0, 3))
    assert isinstance(found, Disagreed)
    assert found.sections == ("sessions", "users", "catalog")


def test_reports_of_other_generations_do_not_count() -> None:
    """A replica's last report replaces its earlier one, and counts for its own generation alone."""
    reports = Reports(Roster.founding(0, 3))
    reports.take(1, 4, report("a"))
    assert isinstance(reports.judge(4, report("a")), Agreed)
    assert isinstance(reports.judge(5, report("a")), Waiting)
    reports.take(1, 5, report("a"))
    assert isinstance(reports.judge(4, report("a")), Waiting)
    assert isinstance(reports.judge(5, report("a")), Agreed)
    reports.clear()
    assert isinstance(reports.judge(5, report("a")), Waiting)
    assert [Reports(Roster.founding(0, count)).others_suffice for count in (1, 2, 3, 4, 5)] == [
        *(False, False),
        *(True, True, True),
    ]


@pytest.mark.parametrize(
    ("founding", "reported", "members", "late", "expected"),
    [
        # Two of five wait; they are a majority of three, and of two all that there are.
        ((0, 5), {1: "a"}, ((0, 1, 2, 3, 4), ()), {}, Waiting((0, 1), 3)),
        ((0, 5), {1: "a"}, ((0, 1, 2), ()), {}, (0, 1)),
        # A removed replica's report does not count, and is not taken any more.
        ((0, 3), {1: "a"}, ((0, 2), ()), {}, Waiting((0,), 2)),
        ((0, 3), {1: "a"}, ((0, 2), ()), {1: "a"}, Waiting((0,), 2)),
        ((0, 3), {1: "b", 2: "b"}, ((0, 2, 3), ()), {3: "a"}, (0, 3)),
        ((0, 3), {1: "b"}, ((0,), ()), {}, (0,)),
        # A new voter's does, once it is one; and a majority becomes too few.
        ((0, 2), {}, ((0, 1, 2), ()), {2: "a"}, (0, 2)),
        ((0, 3), {4: "a"}, ((0, 1, 2, 4), ()), {}, Waiting((0,), 3)),
        ((0, 3), {1: "a"}, ((0, 1, 2, 4), ()), {}, Waiting((0, 1), 3)),
        ((0, 3), {1: "a"}, ((0, 1, 2, 4), ()), {4: "a"}, (0, 1, 4)),
        # Standbys have no say; those that are promoted have.
        ((0, 1), {}, ((0,), (1,)), {1: "b"}, (0,)),
        ((0, 2, 1), {2: "a"}, ((0, 1), (2,)), {}, Waiting((0,), 2)),
        ((0, 2, 1), {2: "a"}, ((0, 1, 2), ()), {}, (0, 2)),
        # This replica was removed: its own report does not count, either.
        ((0, 3), {1: "b", 2: "b"}, ((1, 2), ()), {}, (1, 2)),
        ((0, 3), {1: "b"}, ((1, 2), ()), {}, Waiting((1,), 2)),
        # All that are left have reported, and differ.
        ((0, 3), {1: "b"}, ((0, 1), ()), {}, None),
    ],
)
def test_the_voters_of_the_moment_are_counted(
    founding: tuple[int, ...],
    reported: dict[int, str],
    members: tuple[tuple[int, ...], tuple[int, ...]],
    late: dict[int, str],
    expected: Waiting | tuple[int, ...] | None,
) -> None:
    """Replica 0 has root a. Its verdict is that of the voters at the moment of judging: waiting,
    agreed by some, or none (disagreed)."""
    roster = Roster.founding(*founding)
    reports = Reports(roster)
    for replica, letter in reported.items():
        reports.take(replica, 1, report(letter))
    roster.enter(*members)
    for replica, letter in late.items():
        assert reports.take(replica, 1, report(letter)) is (replica in roster.others)
    found = reports.judge(1, report("a"))
    match found:
        case Waiting():
            assert found == expected
        case Agreed():
            assert found.replicas == expected
        case Disagreed():
            assert expected is None
    assert reports.of(1).keys() <= set(roster.others)


@pytest.mark.parametrize(
    ("members", "suffice"),
    [
        (((0, 1, 2), ()), True),
        (((0, 1), ()), False),
        (((0,), ()), False),
        (((0,), (1,)), False),
        (((1,), (0,)), True),
        (((1, 2), ()), True),
        (((0, 1, 2, 3), ()), True),
    ],
)
def test_others_suffice_as_members_change(
    members: tuple[tuple[int, ...], tuple[int, ...]], suffice: bool
) -> None:
    """Whether a generation completes without replica 0 depends on the voters of the moment."""
    roster = Roster.founding(0, 3)
    reports = Reports(roster)
    roster.enter(*members)
    assert reports.others_suffice is suffice
