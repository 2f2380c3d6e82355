"""The report of what no seed runs: of a small tree, with the real coverage.py.

Method: the tree has a program that takes seeds as the world does. A seed runs one of its functions.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import pytest

from testkit.campaigns.fingerprint import ROOT
from testkit.world.coverage import Measurement, NothingMeasured, main, report
from testkit.world.reached import MODULE, Unreached, judge, listing, markdown, ranges
from testkit.world.unreached import TABLE

PROJECT: Final = '[tool.coverage.report]\nexclude_also = ["if TYPE_CHECKING:"]\n'
PRODUCT: Final = """\
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import never

def odd():
    return 1

class Even:
    def number(self, of):
        if of == 6:
            return 6
        if of == 8:
            rare = "eight"
            raise ValueError(rare)
        return 2
"""
IDLE: Final = "LIMIT = 1\n"
PROGRAM: Final = """\
import argparse
import sys
from product.inner.numbers import Even, odd

parser = argparse.ArgumentParser()
parser.add_argument("--seed", type=int)
parser.add_argument("--count", type=int)
chosen = parser.parse_args()
for seed in range(chosen.seed, chosen.seed + chosen.count):
    with open("runs.txt", "a") as runs:
        runs.write(f"{seed}\\n")
    print(seed, odd() if seed % 2 else Even().number(seed))
sys.exit(chosen.seed == 6)
"""
NUMBERS: Final = "product/inner/numbers.py"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Return a small project."""
    return project(tmp_path)


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Any]:
    """Return what two seeds run, measured once for all tests that judge it."""
    return combined(project(tmp_path_factory.mktemp("measured")), range(1, 3))


def project(folder: Path) -> Path:
    """Write a small project into a folder."""
    inner = folder / "product" / "inner"
    inner.mkdir(parents=True)
    (folder / "pyproject.toml").write_text(PROJECT)
    (folder / "program.py").write_text(PROGRAM)
    (folder / "product" / "__init__.py").write_text("")
    (folder / "product" / "idle.py").write_text(IDLE)
    (inner / "__init__.py").write_text("")
    (inner / "numbers.py").write_text(PRODUCT)
    return folder


def measurement(tree: Path, code: str = "first") -> Measurement:
    """Return what measures the small project."""
    return Measurement(tree / "state", tree, "product", "program", code=code)


def combined(tree: Path, seeds: range) -> Mapping[str, Any]:
    """Return what these seeds run."""
    measuring = measurement(tree)
    return measuring.combined(measuring.run(seeds, 1))


def runs(tree: Path) -> list[int]:
    """Return the seeds that were run, in order."""
    return [int(line) for line in (tree / "runs.txt").read_text().splitlines()]


def test_lines_that_no_seed_runs_are_told_by_function(measured: Mapping[str, Any]) -> None:
    """A branch that is not taken is a gap of its method; a file that nobody imports is one, too."""
    gaps = judge(measured, ()).not_named
    assert [(gap.file, gap.function, gap.lines) for gap in gaps] == [
        ("product/idle.py", MODULE, (1,)),
        (NUMBERS, "Even.number", (12, 14, 15)),
    ]


def test_chunks_are_combined(tree: Path) -> None:
    """What a chunk did not run is run if another chunk did."""
    alone = judge(combined(tree, range(6, 8)), ())
    assert [gap.lines for gap in alone.not_named if gap.file == NUMBERS] == [(13, 14, 15, 16)]
    together = judge(combined(tree, range(1, 8)), ())
    assert [gap.lines for gap in together.not_named] == [(1,), (14, 15)]


def test_packages_have_shares(measured: Mapping[str, Any]) -> None:
    """Statements are counted by package and together; lines that the gate leaves out are not."""
    shares = {share.package: share for share in judge(measured, ()).shares}
    assert (shares["product"].statements, shares["product"].run) == (1, 0)
    inner = shares["product/inner"]
    assert (inner.statements - inner.run, shares["all"].statements) == (3, inner.statements + 1)
    assert inner.statements == 11


def test_the_share_without_what_no_seed_can_run_is_told(measured: Mapping[str, Any]) -> None:
    """A folder that the table names as a whole is left out of one more share, the last one."""
    entry = Unreached("six is rare", "tests/numbers.py", ("product/inner/",))
    shares = judge(measured, (entry,)).shares

    assert [share.package for share in shares[-2:]] == ["all", "all without product/inner/"]
    assert (shares[-1].statements, shares[-1].run) == (1, 0)
    assert judge(measured, ()).shares[-1].package == "all"


@pytest.mark.parametrize(
    "place", [f"{NUMBERS} Even.number", f"{NUMBERS} Even.*", NUMBERS, "product/inner/"]
)
def test_a_place_names_what_is_in_it(measured: Mapping[str, Any], place: str) -> None:
    """A function, class, file or folder of the table explains the gaps in it, and no others."""
    entry = Unreached("six is rare", "tests/numbers.py", (place,))
    reached = judge(measured, [entry])
    assert [(named, len(gaps)) for named, gaps in reached.named] == [(entry, 1)]
    assert [gap.file for gap in reached.not_named] == ["product/idle.py"]
    assert reached.idle_places == ()


@pytest.mark.parametrize(
    ("places", "ends", "lines"),
    [
        ((), "raise ValueError", (14, 15)),
        ((), "return [36]", (12,)),
        ((f"{NUMBERS} Even.*",), "raise|return", (12, 14, 15)),
        (("product/idle.py",), "raise", ()),
        ((), "rare =", ()),
    ],
)
def test_a_block_is_named_by_its_last_statement(
    tree: Path, places: tuple[str, ...], ends: str, lines: tuple[int, ...]
) -> None:
    """A pattern names whole blocks by how they end, everywhere or in some places, and a pattern
    that names nothing is told."""
    entry = Unreached("rare", "tests/numbers.py", places, ends)
    reached = judge(combined(tree, range(1, 3)), [entry], tree)
    assert [gap.lines for _, gaps in reached.named for gap in gaps] == ([lines] if lines else [])
    assert (ends in reached.idle_places) is not bool(lines)


def test_a_block_is_named_once(tree: Path) -> None:
    """Of several entries that explain a block the first one has it, and a place before a kind."""
    kinds = [Unreached("kind", "tests", ends="raise"), Unreached("other", "tests", ends="raise V")]
    place = Unreached("place", "tests", (f"{NUMBERS} Even.*",))
    measured = combined(tree, range(1, 3))
    assert [entry for entry, _ in judge(measured, kinds, tree).named] == kinds[:1]
    assert [entry for entry, _ in judge(measured, [*kinds, place], tree).named] == [place]


@pytest.mark.parametrize("place", [f"{NUMBERS} odd", f"{NUMBERS} Even", "product/inn", "other/"])
def test_a_place_that_names_nothing_is_told(measured: Mapping[str, Any], place: str) -> None:
    """An entry whose lines are all run is told, so that the table does not outlive its reasons."""
    reached = judge(measured, [Unreached("six is rare", "tests/numbers.py", (place,))])
    assert reached.idle_places == (place,)
    assert len(reached.not_named) == 2
    rare = Unreached("a moment", "tests/numbers.py", (place,), is_rare=True)
    assert judge(measured, [rare]).idle_places == ()


def test_a_measurement_goes_on_where_it_was(tree: Path) -> None:
    """Chunks that are done with the same code are not run again; other code runs all again."""
    measurement(tree).run(range(1, 6), 1)
    measurement(tree).run(range(1, 8), 1)
    assert runs(tree) == [1, 2, 3, 4, 5, 6, 7]
    measurement(tree, "second").run(range(1, 6), 1)
    assert runs(tree)[7:] == [1, 2, 3, 4, 5]


def test_a_failed_seed_is_told_also_later(
    tree: Path, measured: Mapping[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    """What a chunk with a failed seed ran counts, and its failure is told at every report."""
    reached = judge(measured, [Unreached("idle", "tests", ("product/",))])
    for _ in range(2):
        measuring = measurement(tree)
        failures = measuring.failures(measuring.run(range(1, 11), 1))
        assert [path.name for path in failures] == ["seeds-6-10-first.failed.txt"]
        assert failures[0].read_text().startswith("6 6\n")
        assert report(reached, failures) == 1
    assert report(reached, []) == 0
    assert "a seed failed" in capsys.readouterr().out


def test_a_report_fails_for_lines_and_places_without_each_other(
    measured: Mapping[str, Any],
) -> None:
    """The exit status is 0 only if every gap is named and every place names a gap."""
    all_named = Unreached("idle", "tests", ("product/",))
    assert report(judge(measured, [all_named]), []) == 0
    assert report(judge(measured, ()), []) == 1
    idle = Unreached("gone", "tests", ("product/gone.py",))
    assert report(judge(measured, [all_named, idle]), []) == 1


def test_a_program_that_measures_nothing_is_an_error(tree: Path) -> None:
    """Without data there is no report that says nothing is left."""
    with pytest.raises(NothingMeasured, match="nowhere"):
        Measurement(tree / "state", tree, "product", "nowhere").run(range(1, 3), 1)


def test_readers_get_tables_and_places(measured: Mapping[str, Any]) -> None:
    """The tables have shares and reasons, the listing has lines by function."""
    entry = Unreached("six is rare", "tests/numbers.py", (NUMBERS, "product/gone.py"))
    reached = judge(measured, [entry])
    assert "| product/inner | 11 | 8 | 72.7 % |" in markdown(reached)
    assert "| 3 | six is rare | `tests/numbers.py` |" in markdown(reached)
    assert "| 1 | not named yet | |" in markdown(reached)
    told = listing(reached)
    assert (
        f"## six is rare\n\nRun by `tests/numbers.py`.\n\n- {NUMBERS} Even.number: 12, 14-15\n"
        in told
    )
    assert f"## Not named\n\n- product/idle.py {MODULE}: 1\n" in told
    assert told.endswith("## Places of the table that name nothing\n\n- product/gone.py\n")


def test_neighbouring_lines_are_a_range() -> None:
    """Lines are written as a reader writes them."""
    assert ranges([]) == ""
    assert ranges([3, 5, 6, 7, 9]) == "3, 5-7, 9"


@pytest.mark.long
def test_the_table_names_what_there_is() -> None:
    """Every place of the table and every test that it names exists, and none is named twice."""
    places = [place for entry in TABLE for place in entry.places]
    assert sorted(places) == sorted(set(places))
    assert [place for place in places if not _exists(place)] == []
    assert [entry.test for entry in TABLE if not (ROOT / entry.test).exists()] == []


def _exists(place: str) -> bool:
    file, _, function = place.removesuffix(".*").partition(" ")
    path = ROOT / file
    if not function or not path.is_file():
        return path.exists() and not function
    return function == MODULE or function in set(_functions(ast.parse(path.read_text()), ""))


def _functions(node: ast.AST, prefix: str) -> Iterator[str]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield f"{prefix}{child.name}"
            yield from _functions(child, f"{prefix}{child.name}.")
        else:
            yield from _functions(child, prefix)


@pytest.mark.exhaustive
def test_one_seed_is_measured(tmp_path: Path) -> None:
    """The command measures a seed of the world, writes its tables, and fails for what is left."""
    page = tmp_path / "page.md"
    page.write_text("<!-- coverage -->\n<!-- end of coverage -->\n")
    words = ["--seed", "1", "--count", "1", "--state", str(tmp_path / "state")]
    no_stories = ["--stories", str(tmp_path)]
    assert main([*words, *no_stories, "--markdown", str(page)]) == 1
    assert "| coordinator/vsr |" in page.read_text()
    assert "coordinator/" in (tmp_path / "state" / "unreached.md").read_text()
