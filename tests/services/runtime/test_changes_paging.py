"""Pages of changes: where they begin and end, and which changes are kept at all."""

from __future__ import annotations

import gc
import weakref
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.runtime import queries as queries_module
from services.runtime.failures import ApplyError
from services.runtime.machine import CHANGES_CODE
from services.runtime.spans import BULK_ITEMS_MIN
from tests.services.runtime.changes_reading import changes_item, changes_of, page_of, pages_of
from tests.services.runtime.changes_script import ROW_BYTES, Row, ScriptHarness, script, tell
from tests.services.runtime.echo import batch
from viewstamp import framing
from viewstamp.api.domain.v1 import domain_service_pb2 as pb
from viewstamp.limits import (
    CHANGES_PAGE_BYTES_MAX,
    CHANGES_PAGE_MAX,
    CHANGES_PASSED_MAX,
    MESSAGE_BYTES_MAX,
)

# Three changes of revision 1, none of 2, two of 3, one of 4.
SCRIPTS: Final = ("a=1 b=1 c=1", "", "a=2 b=2", "a=3")
REVISIONS: Final = [1, 1, 1, 3, 3, 4]


@pytest.fixture
def harness() -> ScriptHarness:
    """A harness with changes."""
    made = ScriptHarness()
    for revision, text in enumerate(SCRIPTS, 1):
        made.apply(script(text, revision=revision))
    return made


# From where, how many, how many at most -> the revisions of a page, and where the next one begins.
PAGES: Final[list[tuple[tuple[int, int, int], list[int], tuple[int, int] | None]]] = [
    ((0, 0, 99), REVISIONS, None),
    ((1, 0, 99), REVISIONS, None),
    ((1, 0, 6), REVISIONS, None),
    ((1, 0, 5), REVISIONS[:5], (4, 0)),
    ((1, 0, 4), REVISIONS[:4], (3, 1)),
    ((1, 0, 3), REVISIONS[:3], (3, 0)),
    ((1, 0, 2), REVISIONS[:2], (1, 2)),
    ((1, 0, 0), [], (1, 0)),
    ((1, 2, 0), [], (1, 2)),
    ((1, 1, 1), [1], (1, 2)),
    ((1, 2, 2), [1, 3], (3, 1)),
    ((1, 3, 2), [3, 3], (4, 0)),
    ((1, 4, 2), [3, 3], (4, 0)),
    ((1, (1 << 32) - 1, 99), REVISIONS[3:], None),
    ((2, 1, 1), [3], (3, 1)),
    ((3, 1, 99), [3, 4], None),
    ((3, 2, 99), [4], None),
    ((0, 2, 1), [1], (1, 1)),
    ((4, 1, 99), [], None),
    ((5, 0, 99), [], None),
    ((5, 7, 99), [], None),
    (((1 << 64) - 1, (1 << 32) - 1, (1 << 32) - 1), [], None),
]


@pytest.mark.parametrize(("asked", "revisions", "following"), PAGES, ids=str)
def test_a_page_has_what_was_asked_for(
    harness: ScriptHarness,
    asked: tuple[int, int, int],
    revisions: list[int],
    following: tuple[int, int] | None,
) -> None:
    """A page begins behind the changes that are left out, and says where the next one begins."""
    page = page_of(harness.machine, from_revision=asked[0], skipped=asked[1], changes_max=asked[2])
    assert [change.revision for change in page.changes] == revisions
    assert page.is_cut_off is (following is not None)
    assert (page.next_revision, page.next_skipped) == (following or (0, 0))
    assert page.oldest_revision == 1


@pytest.mark.parametrize("from_revision", [0, 1, 1 << 63])
def test_nothing_to_leave_out_takes_no_time(from_revision: int) -> None:
    """A machine without changes answers at once, however many are to be left out."""
    page = page_of(ScriptHarness().machine, from_revision=from_revision, skipped=(1 << 32) - 1)
    assert page == pb.ChangesPage(oldest_revision=1)


@given(counts=st.lists(st.integers(0, 5), min_size=1, max_size=8), changes_max=st.integers(1, 7))
def test_resuming_gives_each_change_once(counts: list[int], changes_max: int) -> None:
    """Pages of any size, one after the other, are all changes in their order."""
    harness = ScriptHarness()
    for revision, count in enumerate(counts, 1):
        text = " ".join(f"n{number}={revision}" for number in range(count))
        harness.apply(script(text, revision=revision))
    pages = pages_of(harness.machine, changes_max=changes_max)
    assert [len(page.changes) for page in pages[:-1]] == [changes_max] * (len(pages) - 1)
    found = [tell(change) for page in pages for change in page.changes]
    expected = [(r, f"n{n}={r}") for r, count in enumerate(counts, 1) for n in range(count)]
    assert [(revision, what) for revision, _, what in found] == expected


def test_a_page_has_so_many_changes_at_most() -> None:
    """More than a page holds is cut off, whatever the caller asks for."""
    harness = ScriptHarness()
    harness.run(" ".join(f"n{number}=x" for number in range(CHANGES_PAGE_MAX + 1)))
    first, second = pages_of(harness.machine, changes_max=(1 << 32) - 1)
    assert (len(first.changes), len(second.changes)) == (CHANGES_PAGE_MAX, 1)
    assert (first.next_revision, first.next_skipped) == (1, CHANGES_PAGE_MAX)


def test_a_page_has_so_many_bytes() -> None:
    """The change that goes beyond the bytes of a page is its last one, so that one always fits."""
    harness, half = ScriptHarness(), "x" * (CHANGES_PAGE_BYTES_MAX // 2)
    harness.run(f"a={half} b={half} c={half}", "d=1", f"e={half * 4}", "f=1")
    pages = pages_of(harness.machine)
    keys = [b"".join(change.key for change in page.changes) for page in pages]
    assert keys == [b"ab", b"cde", b"f"]
    assert [(page.next_revision, page.next_skipped) for page in pages] == [(1, 2), (4, 0), (0, 0)]


def test_a_page_passes_so_many_changes_at_most() -> None:
    """Changes that nobody follows are passed over, in pages whose cost is bounded all the same."""
    harness = ScriptHarness(bytes_max=3 * CHANGES_PASSED_MAX * ROW_BYTES)
    harness.run(" ".join(f"n{number}=x" for number in range(2 * CHANGES_PASSED_MAX)), "user:7=x")
    asked = {"from_revision": 1, "changes_max": 1, "followed": b""}
    first = page_of(harness.machine, **asked)
    assert (list(first.changes), first.is_cut_off) == ([], True)
    assert (first.next_revision, first.next_skipped) == (1, CHANGES_PASSED_MAX + 1)
    second = page_of(harness.machine, **{**asked, "skipped": first.next_skipped})
    assert [change.user_id for change in second.changes] == [7]
    assert not second.is_cut_off


def test_followed_streams_that_are_malformed_are_refused() -> None:
    """Bytes that are no list of streams end the read, and not the service."""
    with pytest.raises(ApplyError, match="malformed"):
        page_of(ScriptHarness().machine, followed=b"\xff")


# Revisions with so many changes each, of which three are kept -> the oldest revision.
KEPT: Final[dict[str, tuple[list[int], int]]] = {
    "within the limit": ([1, 1, 1], 1),
    "one beyond": ([1, 1, 1, 1], 2),
    "a whole revision goes": ([3, 1], 2),
    "several go": ([1, 1, 1, 3], 4),
    "of a revision all or none": ([1, 2, 2], 3),
    "alone beyond the limit": ([4], 2),
    "nothing is left before one beyond the limit": ([1, 1, 9], 4),
    "after one beyond the limit": ([1, 9, 1, 1], 3),
    "revisions without changes": ([2, 0, 0, 2], 2),
}


@pytest.mark.parametrize("name", KEPT)
@pytest.mark.parametrize("at_once", [False, True], ids=["a batch each", "one batch"])
def test_the_oldest_revisions_are_given_up_whole(name: str, at_once: bool) -> None:
    """What is kept begins at a revision and is within the limit, all of it from there on."""
    counts, oldest = KEPT[name]
    # Each command creates other rows, so that a change weighs one row.
    texts = [" ".join(f"r{r}n{n}=x" for n in range(count)) for r, count in enumerate(counts, 1)]
    harness = ScriptHarness(bytes_max=3 * ROW_BYTES)
    if at_once:
        harness.apply(script(*texts, revision=1))
    else:
        for revision, text in enumerate(texts, 1):
            harness.apply(script(text, revision=revision))
    page = page_of(harness.machine)
    assert page.oldest_revision == oldest
    kept = [revision for revision, count in enumerate(counts, 1) for _ in range(count)]
    assert [change.revision for change in page.changes] == [r for r in kept if r >= oldest]


# The last of three scripts -> the oldest revision, where a change has room for three rows.
WEIGHTS: Final[dict[str, tuple[str, int]]] = {
    "an update keeps the old row": ("a=2", 2),
    "what both rows share weighs nothing": ("a=1", 1),
    "a delete keeps the old row": ("-a", 2),
    "a new row is in the state": ("c=1", 1),
}


@pytest.mark.parametrize("name", WEIGHTS)
def test_a_change_weighs_what_it_keeps(name: str) -> None:
    """Old rows weigh, as far as nothing else holds them."""
    text, oldest = WEIGHTS[name]
    harness = ScriptHarness(bytes_max=3 * ROW_BYTES)
    harness.run("a=1", "b=1", text)
    assert page_of(harness.machine).oldest_revision == oldest


def test_bulk_gives_up_what_single_commands_give_up() -> None:
    """The limit holds for a span done in bulk as for each of its commands."""
    texts = [f"n{number}=x" for number in range(40)]
    pages = []
    for together in (40, 1):
        harness = ScriptHarness(bytes_max=7 * ROW_BYTES)
        for start in range(0, 40, together):
            harness.apply(script(*texts[start : start + together], revision=1 + start))
        pages.append(page_of(harness.machine))
    assert pages[0] == pages[1]
    assert [change.revision for change in pages[0].changes] == list(range(34, 41))


@pytest.mark.parametrize("rows_max", range(1, 70, 3))
def test_bulk_between_single_commands_gives_up_the_same(rows_max: int) -> None:
    """Whatever lies between what was done in bulk, the oldest revisions go, and no others."""
    bulk = [f"n{number}=x" for number in range(2 * BULK_ITEMS_MIN)]
    after = ["a=1 b=1 c=1", "a=2", "-b", *(f"m{number}=x" for number in range(BULK_ITEMS_MIN))]
    pages = []
    for together in (True, False):
        harness, revision = ScriptHarness(bytes_max=rows_max * ROW_BYTES), 1
        for texts in (bulk, after[:3], after[3:], ["d=1", "d=2"]):
            spans = [texts] if together else [[text] for text in texts]
            for span in spans:
                harness.apply(script(*span, revision=revision))
                revision += len(span)
        pages.append(pages_of(harness.machine))
    assert pages[0] == pages[1]


def test_a_long_history_is_as_a_short_one() -> None:
    """Changes that were given up are deleted now and then, and nobody notices."""
    harness, count = ScriptHarness(bytes_max=5 * ROW_BYTES), 7_001
    for start in range(1, 3 * count, count):
        # A value of one revision after the other, and access with it: three rows each.
        texts = [f"a={revision} user:7=x" for revision in range(start, start + count)]
        harness.apply(script(*texts, revision=start))
        pages = pages_of(harness.machine, changes_max=1, user_id=7)
        last = start + count - 1
        assert [page.changes[0].revision for page in pages] == [last] * 2
        assert {page.oldest_revision for page in pages} == {last}
        assert {page.access_revision for page in pages} == {last}


class Watchable(str):
    """A text that tells when it is freed."""

    __slots__ = ("__weakref__",)


def test_what_is_given_up_is_freed_at_once() -> None:
    """The limit bounds the memory of rows, not only which of them are told."""
    harness, text = ScriptHarness(bytes_max=3 * ROW_BYTES), Watchable("large")
    freed = weakref.ref(text)
    harness.machine.state.items.put("a", Row("a", text, 0))
    harness.machine.undo.settle()
    harness.run("-a", "b=1")
    del text
    gc.collect()
    assert freed() is not None
    harness.run("c=1")
    gc.collect()
    assert freed() is None


# User 7's access changes at revisions 2 and 4, that of user 8 at revision 3.
ACCESS: Final = ("a=1", "user:7=x", "user:8=x", "user:7=y a=2", "a=3 -a")


@pytest.mark.parametrize(("user_id", "revision"), [(7, 4), (8, 3), (9, 0), (0, 0), (None, 0)])
def test_a_page_tells_when_access_changed_last(user_id: int | None, revision: int) -> None:
    """The last change of what the user may do is told whatever the page begins with."""
    harness = ScriptHarness()
    harness.run(*ACCESS)
    for from_revision in (0, 4, 99):
        page = page_of(harness.machine, from_revision=from_revision, user_id=user_id)
        assert page.access_revision == revision


def test_the_access_of_user_0_is_told() -> None:
    """Root has the id 0, which is a user as any other."""
    harness = ScriptHarness()
    harness.run("user:0=x", "a=1")
    assert page_of(harness.machine, user_id=0).access_revision == 1
    assert page_of(harness.machine).access_revision == 0


def test_a_deleted_user_had_access() -> None:
    """That a user is gone changes what they may do."""
    harness = ScriptHarness()
    harness.run("user:7=x", "-user:7")
    assert page_of(harness.machine, user_id=7).access_revision == 2


def test_access_that_changed_before_the_oldest_revision_is_forgotten() -> None:
    """Of changes that are not kept, the page tells no access either."""
    harness = ScriptHarness(bytes_max=4 * ROW_BYTES)
    harness.run("user:7=x", "user:8=x", "user:7=y")
    page = page_of(harness.machine, user_id=7)
    assert (page.oldest_revision, page.access_revision) == (1, 3)
    harness.run("a=1", "b=1", "c=1")
    assert page_of(harness.machine).oldest_revision == 3
    assert page_of(harness.machine, user_id=7).access_revision == 3
    assert page_of(harness.machine, user_id=8).access_revision == 0
    harness.run("d=1")
    assert page_of(harness.machine, user_id=7).access_revision == 0
    assert [change.revision for change in changes_of(harness.machine)] == [4, 5, 6, 7]


class Hasty:
    """Lets one read of a batch begin."""

    def __init__(self) -> None:
        """Begin with none."""
        self.begun = 0

    def begins(self) -> bool:
        """Count a read."""
        self.begun += 1
        return self.begun <= 1

    def is_gone(self) -> bool:
        """Return False."""
        return False


def test_a_read_of_changes_is_postponed_like_others(harness: ScriptHarness) -> None:
    """Once a batch has used up its slice, changes have to be asked for again."""
    reads = [changes_item(), changes_item()]
    first, second = harness.machine.apply(batch(0, *reads), Hasty()).reply.outcomes
    assert (first.query.postponed, second.query.postponed) == (False, True)
    assert first.query.results
    assert not second.query.results


def test_pages_of_changes_fill_a_batch(
    harness: ScriptHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pages count as answers: those that an Apply message has no room for are postponed."""
    monkeypatch.setattr(queries_module, "APPLY_ANSWERS_BYTES_MAX", MESSAGE_BYTES_MAX + 1)
    outcomes = harness.machine.apply(batch(0, *[changes_item()] * 3)).reply.outcomes
    assert [o.query.postponed for o in outcomes] == [False, True, True]


@pytest.mark.parametrize(
    "items", [b"", b"\x0a\x7f", framing.frame(b"\x0a"), framing.frame(b"") * 2]
)
def test_a_malformed_read_is_a_fault_of_the_coordinator(
    harness: ScriptHarness, items: bytes
) -> None:
    """No caller writes this read, so a malformed one ends the stream like any broken promise."""
    item = pb.Item(query=pb.QueryItem(code=CHANGES_CODE, count=1, items=items))
    with pytest.raises(ApplyError, match="malformed"):
        harness.machine.apply(batch(0, item))
