"""Commands about offsets and watermarks, against a gateway."""

from __future__ import annotations

import pytest

from tests.viewstamp.cli.conftest import CommandLine

GROUP = ("orders", "payments", "billing")
RESET = ("group", "reset-offsets", *GROUP)
DELETE = ("group", "delete-offsets", *GROUP)
# A second after half of what there is was written.
LATER = "2026-11-28T10:00:01Z"


def offsets(viewstamp: CommandLine) -> dict[int, int]:
    """Return the offsets of the group, by partition."""
    listed = viewstamp("group", "offsets", *GROUP, "--json").data
    return {each["partition"]: each["offset"] for each in listed}


def test_watermarks_are_shown(viewstamp: CommandLine) -> None:
    """Watermarks are a table of what was reported, and objects with the same keys."""
    said = viewstamp("topic", "watermarks", "orders", "payments")
    assert [line.split() for line in said.out.splitlines()] == [
        ["partition", "start_offset", "end_offset"],
        ["0", "10", "100"],
        ["1", "0", "50"],
    ]
    assert viewstamp("topic", "watermarks", "orders", "payments", "--json").data == [
        {"partition": 0, "start_offset": 10, "end_offset": 100},
        {"partition": 1, "start_offset": 0, "end_offset": 50},
    ]


def test_offsets_are_shown_with_their_lag(viewstamp: CommandLine) -> None:
    """A partition has a row, the last line sums the lags up, and an unknown lag is told apart."""
    assert viewstamp("group", "offsets", *GROUP).out.startswith("no offsets yet")
    assert viewstamp("group", "offsets", *GROUP, "--json").data == []
    viewstamp(*RESET, "--offset", "0=40", "--offset", "1=50")
    *rows, total = viewstamp("group", "offsets", *GROUP).out.splitlines()
    assert [row.split() for row in rows] == [
        ["partition", "offset", "start_offset", "end_offset", "lag"],
        ["0", "40", "10", "100", "60"],
        ["1", "50", "0", "50", "0"],
    ]
    assert total == "total lag: 60"
    viewstamp(*RESET, "--offset", "7=5")
    *_, unknown, total = viewstamp("group", "offsets", *GROUP).out.splitlines()
    assert unknown.split() == ["7", "5", "-", "-", "-"]
    assert total == "total lag: 60 (of 2 partitions; nothing was reported of 1)"
    assert viewstamp("group", "offsets", *GROUP, "--json").data[2] == {
        "partition": 7,
        "offset": 5,
        "start_offset": None,
        "end_offset": None,
        "lag": None,
    }


def test_offsets_are_reset(viewstamp: CommandLine) -> None:
    """A group reads on where data begins or ends, or at an offset; a dry run resets nothing."""
    said = viewstamp(*RESET, "--to", "earliest")
    assert said.out.startswith("reset all offsets of group billing to earliest (revision ")
    assert offsets(viewstamp) == {0: 10, 1: 0}
    said = viewstamp(*RESET, "--to", "latest", "--partition", "0", "--partition", "1", "--dry-run")
    assert said.out == (
        "dry run: would have reset the offsets of partitions 0, 1 of group billing to latest; "
        "nothing was changed\n"
    )
    assert offsets(viewstamp) == {0: 10, 1: 0}
    said = viewstamp(*RESET, "--to", "latest", "--partition", "1")
    assert said.out.startswith("reset the offsets of partition 1 of group billing to latest (")
    assert offsets(viewstamp) == {0: 10, 1: 50}
    said = viewstamp(*RESET, "--offset", "1=20", "--offset", "0=30")
    assert said.out.startswith("reset the offsets of partitions 0, 1 of group billing (revision ")
    assert offsets(viewstamp) == {0: 30, 1: 20}


def test_an_offset_out_of_range_needs_an_option(viewstamp: CommandLine) -> None:
    """An offset outside of what was reported is refused, with where to look, unless allowed."""
    refused = viewstamp(*RESET, "--offset", "0=101")
    assert (refused.code, offsets(viewstamp)) == (1, {})
    assert "OFFSET_OUT_OF_RANGE" in refused.err
    assert "Next: see `viewstamp topic watermarks STREAM TOPIC`." in refused.err
    assert viewstamp(*RESET, "--offset", "0=101", "--allow-out-of-range").code == 0
    assert offsets(viewstamp) == {0: 101}


def test_offsets_are_found_by_time(viewstamp: CommandLine) -> None:
    """They are a table with what they rest on, and objects with the same keys."""
    find = ("topic", "find-offsets", "orders", "payments")
    said = viewstamp(*find, "--time", LATER)
    assert [line.split() for line in said.out.splitlines()] == [
        ["partition", "offset", "written_by", "start_offset", "end_offset"],
        ["0", "55", "2026-11-28", "10:00:00Z", "10", "100"],
        ["1", "25", "2026-11-28", "10:00:00Z", "0", "50"],
    ]
    early = viewstamp(*find, "--time", "2026-11-28T10:59:59+01:00", "--json").data
    assert [(each["offset"], each["written_by"]) for each in early] == [(10, None), (0, None)]
    assert viewstamp(*find, "--duration", "1000w", "--json").data == early
    for options in ((), ("--time", LATER, "--duration", "2h")):
        assert "give one of the two" in viewstamp(*find, *options).err


def test_offsets_are_reset_to_a_time(viewstamp: CommandLine) -> None:
    """A group reads what was written from a time on, or from so long ago on."""
    said = viewstamp(*RESET, "--to-time", LATER)
    assert said.out.startswith(
        "reset all offsets of group billing to 2026-11-28T10:00:01+00:00 (revision "
    )
    assert offsets(viewstamp) == {0: 55, 1: 25}
    dry = viewstamp(*RESET, "--by-duration", "1000w", "--partition", "1", "--dry-run")
    assert dry.out.startswith("dry run: would have reset the offsets of partition 1 of group ")
    assert offsets(viewstamp) == {0: 55, 1: 25}
    assert viewstamp(*RESET, "--by-duration", "1000w", "--partition", "1").code == 0
    assert offsets(viewstamp) == {0: 55, 1: 0}


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ((), "give one of them"),
        (("--to", "latest", "--offset", "0=30"), "give one of them"),
        (("--to", "latest", "--by-duration", "2h"), "give one of them"),
        (("--to-time", LATER, "--by-duration", "2h"), "give one of them"),
        (("--to-time", LATER, "--allow-out-of-range"), "it goes with --offset"),
        (("--to-time", "2026-11-28T10:00:00"), "write 2026-11-28T10:00:00Z"),
        (("--to-time", "noon"), "write 2026-11-28T10:00:00Z"),
        (("--by-duration", "2"), "write 90s, 15m, 12h, 7d, 2w"),
        (("--by-duration", "9000w"), "no duration since 1970"),
        (("--to", "yesterday"), "'yesterday' is not one of"),
        (("--offset", "0"), "write PARTITION=OFFSET"),
        (("--offset", "0=30", "--partition", "0"), "an --offset names its partition itself"),
        (("--to", "latest", "--allow-out-of-range"), "it goes with --offset"),
        (("--to", "latest", "--partition", "-1"), "-1 is not in the range"),
    ],
)
def test_a_reset_that_says_too_little_or_too_much_is_not_sent(
    viewstamp: CommandLine, options: tuple[str, ...], says: str
) -> None:
    """Options that do not go together are an error of usage, which says what does."""
    said = viewstamp(*RESET, *options, "--json")
    assert (said.code, said.error["reason"]) == (2, "USAGE")
    assert says in said.error["message"]
    assert offsets(viewstamp) == {}


def test_offsets_are_deleted_after_a_question(viewstamp: CommandLine) -> None:
    """Offsets of some partitions or of all are forgotten if somebody says yes."""
    viewstamp(*RESET, "--offset", "0=40", "--offset", "1=50", "--offset", "7=5")
    refused = viewstamp(*DELETE, answer="n\n")
    assert (refused.code, len(offsets(viewstamp))) == (2, 3)
    assert "Forget all offsets of group billing?" in refused.err
    assert viewstamp(*DELETE, "--json").error["reason"] == "NOT_CONFIRMED"
    dry = viewstamp(*DELETE, "--dry-run")
    assert dry.out.startswith("dry run: would have deleted all offsets of group billing;")
    assert len(offsets(viewstamp)) == 3
    some = viewstamp(*DELETE, "--partition", "7", "--partition", "0", answer="y\n")
    assert "deleted the offsets of partitions 7, 0 of group billing (revision " in some.out
    assert offsets(viewstamp) == {1: 50}
    assert viewstamp(*DELETE, "--yes", "--json").data["dry_run"] is False
    assert offsets(viewstamp) == {}
