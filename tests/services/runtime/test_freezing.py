"""Releases of cuts that nobody has read, and what is kept of a cut."""

from __future__ import annotations

import asyncio

from tests.services.runtime import echo
from tests.services.runtime.echo import PUT, REMOVE, batch, command, message, put_request
from tests.services.runtime.snapshot_trial import SnapshotTrial, entries, read_section
from viewstamp.machine.freezing import CUTS_MAX, FORGOTTEN_AT_ONCE, Frozen, FrozenTable


def put(trial: SnapshotTrial, *names: str, text: str = "") -> None:
    """Put words."""
    machine = trial.machine
    requests = [put_request(name, text) for name in names]
    machine.apply(batch(machine.sequence + 1, command(PUT, *requests)))


def remove(trial: SnapshotTrial, name: str) -> None:
    """Remove a word."""
    machine = trial.machine
    request = message("RemoveRequest", name=name)
    machine.apply(batch(machine.sequence + 1, command(REMOVE, request)))


def restarted() -> SnapshotTrial:
    """Return a trial with a new machine and a cut, 2, that an earlier machine read."""
    trial = SnapshotTrial(echo.DOMAIN)
    put(trial, "a", "b")
    trial.cut()
    trial.read()
    trial.release(1)
    put(trial, "b", text="changed")
    put(trial, "c")
    trial.cut()
    trial.read()
    trial.restart(1)
    return trial


def test_released_without_being_read() -> None:
    """A cut released unread is the base of the next one, whose digest is correct."""
    trial = restarted()
    trial.release(2)
    assert trial.machine.freezer.base_generation == 2
    remove(trial, "a")
    trial.cut()
    trial.read()
    assert [entry.key for entry in entries(trial.cuts[3].blocks)] == [b"a"]


def test_two_released_without_being_read() -> None:
    """Two such cuts in a row add up."""
    trial = restarted()
    trial.release(2)
    remove(trial, "b")
    trial.cut()
    trial.release(3)
    put(trial, "b", "d")
    trial.cut()
    blocks, summary = asyncio.run(read_section(trial.machine))
    assert (summary.base_generation, summary.state_digest) == (3, trial.cuts[4].digest)
    assert [entry.key for entry in entries(blocks)] == [b"b", b"d", b""]


def test_release_of_what_is_not_frozen() -> None:
    """A release that comes late or again changes nothing: the next cut still folds the last one."""
    trial = restarted()
    for generation in (0, 1, 3):
        trial.release(generation)
    put(trial, "d")
    trial.cut()
    trial.read()
    summary = trial.cuts[3].summary
    assert summary is not None
    assert summary.base_generation == 1
    assert [entry.key for entry in entries(trial.cuts[3].blocks)] == [b"b", b"c", b"d", b""]


def test_taken_back_is_in_no_layer() -> None:
    """A row that came and went between two cuts leaves only the counter's step."""
    trial = SnapshotTrial(echo.DOMAIN)
    put(trial, "a")
    trial.cut()
    trial.read()
    trial.release(1)
    put(trial, "b")
    remove(trial, "b")
    trial.cut()
    trial.read()
    assert [(entry.kind, entry.key) for entry in entries(trial.cuts[2].blocks)] == [(2, b"")]


def test_release_of_an_overtaken_cut() -> None:
    """A cut released after the next one was taken is the base of that one, and of later ones."""
    trial = restarted()
    put(trial, "d")
    trial.cut()
    trial.release(2)
    assert trial.machine.freezer.base_generation == 2
    trial.read()
    summary = trial.cuts[3].summary
    assert summary is not None
    assert summary.base_generation == 2
    assert [entry.key for entry in entries(trial.cuts[3].blocks)] == [b"d", b""]
    trial.release(3)
    remove(trial, "d")
    trial.cut()
    trial.read()
    gone = [entry.key for entry in entries(trial.cuts[4].blocks) if entry.canonical is None]
    assert gone == [b"d"]


def test_release_of_the_older_of_two_that_were_read() -> None:
    """The sum of an overtaken cut is remembered: its release costs no second count."""
    trial = SnapshotTrial(echo.DOMAIN)
    for name in ("a", "b"):
        put(trial, name)
        trial.cut()
        trial.read()
    trial.release(1)
    assert trial.machine.freezer.behind_base() is None
    trial.read()
    summary = trial.cuts[2].summary
    assert summary is not None
    assert (summary.base_generation, summary.state_digest) == (1, trial.cuts[2].digest)


def test_many_cuts_that_are_never_released() -> None:
    """Cuts of snapshots that fail one after the other are not kept apart for ever."""
    trial = SnapshotTrial(echo.DOMAIN)
    for number in range(2 * CUTS_MAX):
        put(trial, f"word-{number}")
        trial.cut()
        trial.read()
    trial.release(CUTS_MAX)  # became one with later ones: ignored
    assert trial.machine.freezer.base_generation == 0
    trial.release(2 * CUTS_MAX - 1)
    trial.read()
    summary = trial.cuts[2 * CUTS_MAX].summary
    assert summary is not None
    assert summary.base_generation == 2 * CUTS_MAX - 1


def test_a_cut_is_forgotten_piece_by_piece() -> None:
    """Freeing the rows of a cut pauses after each piece, and leaves none."""
    rows = 3 * FORGOTTEN_AT_ONCE + 1
    tables = [FrozenTable(dict.fromkeys(range(rows)), dict.fromkeys(range(rows)), is_whole=False)]
    cut: Frozen[None] = Frozen(2, 1, 1, (), tuple(tables))
    left = [len(table.olds) + len(table.news) for _ in cut.forget() for table in tables]
    assert left[0] == 2 * rows - FORGOTTEN_AT_ONCE
    assert (len(left), left[-1]) == (8, 0)
