"""`viewstamp snapshot diff`: two generations of a replica, or one generation of two replicas."""

from __future__ import annotations

import shutil
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from viewstamp.cli.output import print_table, printed
from viewstamp.cli.settings import EXIT_REFUSED, EXIT_USAGE, settings_of
from viewstamp.cli.snapshot_files import ENTITIES_SHOWN, fetch
from viewstamp.cli.snapshot_options import DirectoryOption, telling, warn_of_bad_copies
from viewstamp.format.manifest import section_of
from viewstamp.snapshots import diff as differences
from viewstamp.snapshots.copies import Copies, copy_directories
from viewstamp.snapshots.diff import Change, Difference
from viewstamp.snapshots.entities import SECTION_NAMES, key_text, stage_of
from viewstamp.snapshots.errors import NoSuchGeneration
from viewstamp.snapshots.generation import Generation

GENERATION_SEPARATOR: Final = ":"
# The exit code 2 of `diff`: an error means neither "the same" nor "different".
EXIT_DIFFERENT: Final = EXIT_REFUSED
EXIT_TROUBLE: Final = EXIT_USAGE
# Enough digits of a digest to see that two differ.
DIGEST_DIGITS: Final = 8
SECTION_COLUMNS: Final = ("section", "digest_a", "digest_b", "added", "removed", "changed")
ENTITY_COLUMNS: Final = ("change", "key", "field", "a", "b")
CUT_COLUMNS: Final = ("field", "a", "b")
WITHHELD: Final = "(a field that is never shown)"

SideArgument = Annotated[
    str,
    typer.Argument(
        metavar="GENERATION|DIR|DIR:GENERATION",
        help="A generation of the cluster or of --directory (0: the newest), or a data directory, a"
        " copy directory or a downloaded snapshot. Without a generation: the other side's, or the"
        " newest that both have.",
    ),
]


@dataclass(slots=True)
class Comparison:
    """The result: a count of all differences, and a description of the first ones."""

    a: Generation
    b: Generation
    cut: dict[str, tuple[Any, Any]]
    stages: tuple[int, ...]
    counts: dict[int, Counter[Change]] = field(default_factory=dict)
    described: list[tuple[int, Difference]] = field(default_factory=list)

    @property
    def is_same(self) -> bool:
        """Whether nothing that was compared differs."""
        return not self.cut and not self.counts

    @property
    def left_out(self) -> int:
        """How many differences were counted and not described."""
        return sum(sum(count.values()) for count in self.counts.values()) - len(self.described)


def diff(
    context: typer.Context,
    a: SideArgument,
    b: SideArgument,
    section: Annotated[
        str | None, typer.Option(help=f"Only one of {', '.join(SECTION_NAMES.values())}.")
    ] = None,
    limit: Annotated[
        int, typer.Option(min=0, help="Number of entities to show; 0 for all.")
    ] = ENTITIES_SHOWN,
    directory: DirectoryOption = None,
) -> None:
    """Show the differences: sections by digest, then entities with their fields, without secrets.

    Two generations of one replica, or one generation of two replicas. Exits with 0 if the state is
    the same, 1 if it differs, 2 if that cannot be told. Generations without a directory are
    downloaded to a temporary one.
    """
    settings = settings_of(context)
    with _trouble_is_2(), telling(settings), ExitStack() as stack:
        stages = tuple(SECTION_NAMES) if section is None else (stage_of(section),)
        opened = _opened(stack, context, (_side(a), _side(b)), directory)
        found = _compare(*opened, stages, limit)
        for copies in {id(one.copies): one.copies for one in opened}.values():
            warn_of_bad_copies(settings, copies)
        if not printed(settings, _document(found)):
            _print(found)
    if not found.is_same:
        raise typer.Exit(EXIT_DIFFERENT)


# --- What is compared ---


@dataclass(frozen=True, slots=True)
class _Side:
    """A directory (None: --directory or the cluster), and the number of a generation, if given."""

    path: Path | None
    generation: int | None


def _side(text: str) -> _Side:
    if text.isdecimal():
        return _Side(None, int(text))
    head, separator, tail = text.rpartition(GENERATION_SEPARATOR)
    if separator and head and tail.isdecimal() and not Path(text).exists():
        return _Side(Path(head), int(tail))
    return _Side(Path(text), None)


def _opened(
    stack: ExitStack, context: typer.Context, sides: tuple[_Side, _Side], directory: Path | None
) -> tuple[Generation, Generation]:
    """Open both. Raises SnapshotFilesError, OSError."""
    temporary: Path | None = None
    given: list[Generation | Copies] = []
    for side in sides:
        path = side.path if side.path is not None else directory
        if path is not None:
            copies = Copies(copy_directories(path))
            number = side.generation
            given.append(copies if number is None else Generation(copies, number))
            continue
        assert side.generation is not None, "a side without a directory is a number"
        # One directory serves both, so shared files are downloaded once.
        temporary = temporary or _temporary(stack)
        got = fetch(context, settings_of(context), side.generation, temporary)
        given.append(Generation(Copies([temporary]), got.generation))
    a, b = given
    common = _number(a, b)
    return _at(a, common), _at(b, common)


def _at(given: Generation | Copies, number: int) -> Generation:
    return given if isinstance(given, Generation) else Generation(given, number)


def _number(a: Generation | Copies, b: Generation | Copies) -> int:
    """Return the generation for a side without a number. Raises NoSuchGeneration."""
    for one in (a, b):
        if isinstance(one, Generation):
            return one.number
    there = [one.generations() for one in (a, b) if isinstance(one, Copies)]
    common = set(there[0]) & set(there[1])
    if not common:
        of_a, of_b = (", ".join(map(str, numbers)) or "none" for numbers in there)
        raise NoSuchGeneration(
            f"no generation is in both; in the first: {of_a}; in the second: {of_b}",
            f"name one of each: DIR{GENERATION_SEPARATOR}GENERATION",
        )
    return max(common)


def _temporary(stack: ExitStack) -> Path:
    path = Path(tempfile.mkdtemp(prefix="viewstamp-snapshot-"))
    stack.callback(shutil.rmtree, path)
    return path


def _compare(a: Generation, b: Generation, stages: tuple[int, ...], limit: int) -> Comparison:
    """Count every difference and describe the first ones. Raises SnapshotFilesError."""
    found = Comparison(a, b, differences.different_cut(a.manifest, b.manifest), stages)
    for stage in differences.different_stages(a.manifest, b.manifest):
        if stage not in stages:
            continue
        count = found.counts[stage] = Counter[Change]()
        for pair in differences.pairs(a, b, stage):
            count[pair.change] += 1
            if not limit or len(found.described) < limit:
                found.described.append((stage, differences.describe(stage, pair)))
    return found


@contextmanager
def _trouble_is_2() -> Iterator[None]:
    """Exit with 2 for every error, such as bad files or a refusal of the cluster."""
    try:
        yield
    except typer.Exit as ended:
        raise typer.Exit(EXIT_TROUBLE) from ended


# --- The output ---


def _document(found: Comparison) -> dict[str, Any]:
    return {
        "is_same": found.is_same,
        "a": _about(found.a),
        "b": _about(found.b),
        "cut": {name: {"a": a, "b": b} for name, (a, b) in found.cut.items()},
        "sections": _sections(found),
        "entities": [_entity(stage, one) for stage, one in found.described],
        "entities_left_out": found.left_out,
    }


def _about(generation: Generation) -> dict[str, Any]:
    manifest = generation.manifest
    return {
        "directories": list(map(str, generation.copies.directories)),
        "generation": manifest.generation,
        "cut_op": manifest.cut_op,
        "cut_revision": manifest.cut_revision,
        "root": manifest.root.hex(),
    }


def _sections(found: Comparison) -> list[dict[str, Any]]:
    rows = []
    for stage in found.stages:
        of_a, of_b = (section_of(one.manifest, stage) for one in (found.a, found.b))
        count = found.counts.get(stage, Counter())
        rows.append(
            {
                "section": SECTION_NAMES[stage],
                "is_same": stage not in found.counts,
                "version_a": of_a.version,
                "version_b": of_b.version,
                "digest_a": of_a.state_digest.hex(),
                "digest_b": of_b.state_digest.hex(),
                **{change.value: count[change] for change in Change},
            }
        )
    return rows


def _entity(stage: int, one: Difference) -> dict[str, Any]:
    return {
        "section": SECTION_NAMES[stage],
        "kind": one.info.name,
        "key": key_text(one.info, one.key),
        "change": one.change.value,
        "fields": {name: {"a": a, "b": b} for name, (a, b) in one.fields.items()},
        "is_withheld": one.is_withheld,
    }


def _print(found: Comparison) -> None:
    for name, generation in (("a", found.a), ("b", found.b)):
        about = _about(generation)
        typer.echo(
            f"{name}: generation {about['generation']} (op {about['cut_op']}, revision"
            f" {about['cut_revision']}) of {_where(generation)}"
        )
    if found.cut:
        rows = ({"field": name, "a": a, "b": b} for name, (a, b) in found.cut.items())
        print_table(CUT_COLUMNS, rows, "the cut")
    print_table(SECTION_COLUMNS, map(_short, _sections(found)), "sections")
    for (stage, kind), group in groupby(found.described, lambda one: (one[0], one[1].info.name)):
        rows_of_kind = (row for _, one in group for row in _rows(one))
        print_table(ENTITY_COLUMNS, rows_of_kind, f"{SECTION_NAMES[stage]}: {kind}")
    if found.left_out:
        typer.echo(f"{found.left_out} more differ: raise --limit to see them", err=True)
    typer.echo("the state is the same" if found.is_same else "the state differs")


def _where(generation: Generation) -> str:
    """Return the directory that holds the copies."""
    directories = generation.copies.directories
    return str(directories[0] if len(directories) == 1 else directories[0].parent.parent)


def _short(row: dict[str, Any]) -> dict[str, Any]:
    """Return a section's row for people: equal digests once, and versions only if they differ."""
    digests = {name: row[name][:DIGEST_DIGITS] for name in ("digest_a", "digest_b")}
    if row["is_same"]:
        return {**row, **digests, "digest_b": "same", **{one.value: "" for one in Change}}
    if row["version_a"] != row["version_b"]:
        digests = {
            f"digest_{x}": f"{digests[f'digest_{x}']} (v{row[f'version_{x}']})" for x in "ab"
        }
    return {**row, **digests}


def _rows(one: Difference) -> Iterable[dict[str, Any]]:
    """Yield the rows of an entity: one for each field that differs, or one for it as a whole."""
    head = {"change": one.change.value, "key": key_text(one.info, one.key)}
    if one.change is not Change.CHANGED:
        a, b = ({name: pair[side] for name, pair in one.fields.items()} for side in (0, 1))
        is_added = one.change is Change.ADDED
        yield {**head, "field": "", "a": None if is_added else a, "b": b if is_added else None}
        return
    for name, (old, new) in one.fields.items():
        yield {**head, "field": name, "a": old, "b": new}
    if one.is_withheld:
        yield {**head, "field": WITHHELD, "a": None, "b": None}
