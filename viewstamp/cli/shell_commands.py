"""The commands of the shell of snapshots: each returns an answer, which knows how to print itself.

Nothing of an answer grows with the state: it has as many places as its limit, and says whether more
are left. `ls` and `cat` read as far as the place they look at; `find` reads on until it has found
its limit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

import typer

from viewstamp.cli.output import moment, print_table, table_cells
from viewstamp.cli.shell_words import ShellLine, line_of
from viewstamp.snapshots.errors import BadShellCommand, NoSuchPath
from viewstamp.snapshots.explore.expressions import read_choice
from viewstamp.snapshots.explore.path_parts import HERE
from viewstamp.snapshots.explore.state_explorer import StateExplorer
from viewstamp.snapshots.explore.state_search import chosen_below, named_like
from viewstamp.snapshots.explore.state_tree import StateNode

PLACES_SHOWN: Final = 100
PLACES_SHOWN_MAX: Final = 10_000
TREE_DEPTH: Final = 2
TREE_DEPTH_MAX: Final = 10
GENERATION_PREFIX: Final = "@"
ROOT: Final = "/"
FOLDER_MARK: Final = "/"
INDENT: Final = "  "
OPTIONS: Final[dict[str, tuple[str, ...]]] = {
    "ls": ("--limit", "--after"),
    "cat": (),
    "tree": ("--depth", "--limit"),
    "find": ("--limit",),
    "cd": (),
    "generation": (),
    "pwd": (),
    "help": (),
    "exit": (),
}
HELP: Final = """\
ls [--limit N] [--after NAME] [PATH]   what is at a place; a name with / has more in it
cat PATH                               an entity, without secrets
tree [--depth N] [--limit N] [PATH]    what is at a place, and in it
find [--limit N] [PATH] GLOB           entities below PATH by name: find 'order*'
find [--limit N] [PATH] KIND where PREDICATE
                                       by fields: find topic where name ~ "order*" and id > 7
cd PATH | cd @N                        go to a path; look at the same path in generation N
generation [N]                         look at generation N; without N, list those that are kept
pwd, help, exit
A path begins at / or here; .. is one up. Digits are an id, name:123 is the name 123, and %2F is a
slash in a name. Lists end after 100 places, unless --limit says otherwise, and say if more is left.
The page docs/snapshots.md has the tree and the expressions."""


@dataclass(frozen=True, slots=True)
class ShellAnswer:
    """What a command found: for programs, for people, and a word about what is left."""

    values: dict[str, Any]
    show: Callable[[], None]
    note: str = ""


def answered(explorer: StateExplorer, text: str) -> ShellAnswer:
    """Run a line. Raises SnapshotFilesError; the explorer then stays where it was."""
    line = line_of(text, OPTIONS)
    answer = _COMMANDS[line.command](explorer, line)
    head = {
        "command": text.strip(),
        "generation": explorer.generation.number,
        "path": explorer.text,
    }
    return ShellAnswer({**head, **answer.values}, answer.show, answer.note)


def _ls(explorer: StateExplorer, line: ShellLine) -> ShellAnswer:
    node = explorer.node(line.word(HERE))
    after = line.options.get("--after")
    last = None if after is None else explorer.node(f"{node.text}/{after}")
    limit = line.number("--limit", PLACES_SHOWN, PLACES_SHOWN_MAX)
    found = node.children(last) if node.has_children else iter(())
    places, is_more = _first(found, limit)
    more = f"more are left: go on with --after {places[-1].part}" if is_more else ""
    return _places(places, is_more, lambda one: one.part + FOLDER_MARK * one.has_children, more)


def _cat(explorer: StateExplorer, line: ShellLine) -> ShellAnswer:
    node = explorer.node(line.word(HERE))
    values = node.values()
    if values is None:
        raise NoSuchPath(f"{node.text} is a folder, and no entity", f"`ls {node.text}` lists it")
    found = {"entity": node.text, "kind": node.kind, "values": values}
    cells = [(name, table_cells((name,), [values])[0][0]) for name in values]
    fields = [{"field": name, "value": text} for name, text in cells]
    title = f"{node.kind}: {node.text}"
    return ShellAnswer(found, lambda: print_table(("field", "value"), fields, title))


def _tree(explorer: StateExplorer, line: ShellLine) -> ShellAnswer:
    node = explorer.node(line.word(HERE))
    depth, limit = (
        line.number("--depth", TREE_DEPTH, TREE_DEPTH_MAX),
        line.number("--limit", PLACES_SHOWN, PLACES_SHOWN_MAX),
    )
    places, is_more = _first(_branches(node, depth), limit)
    more = f"more is left: these are the first {limit}, raise --limit" if is_more else ""

    def indented(one: StateNode) -> str:
        level = len(one.path) - len(node.path) - 1
        return INDENT * level + one.part + FOLDER_MARK * one.has_children

    return _places(places, is_more, indented, more)


def _branches(node: StateNode, depth: int) -> Iterator[StateNode]:
    for child in node.children() if node.has_children and depth else ():
        yield child
        yield from _branches(child, depth - 1)


def _find(explorer: StateExplorer, line: ShellLine) -> ShellAnswer:
    limit = line.number("--limit", PLACES_SHOWN, PLACES_SHOWN_MAX)
    if line.choice:
        choice = read_choice(line.choice)
        found = chosen_below(explorer.node(line.word(HERE)), choice)
    else:
        if not 1 <= len(line.words) <= 2:
            raise BadShellCommand("find takes a path and a glob, or only a glob", "see `help`")
        *path, pattern = line.words
        found = named_like(explorer.node(path[0] if path else HERE), pattern)
    places, is_more = _first(found, limit)
    more = f"more is left: these are the first {limit}, raise --limit" if is_more else ""
    return _places(places, is_more, lambda one: one.text, more)


def _cd(explorer: StateExplorer, line: ShellLine) -> ShellAnswer:
    to = line.word(ROOT)
    if to.startswith(GENERATION_PREFIX):
        return _look_at(explorer, to.removeprefix(GENERATION_PREFIX))
    explorer.go_to(to)
    return ShellAnswer({}, lambda: None)


def _generation(explorer: StateExplorer, line: ShellLine) -> ShellAnswer:
    if line.words:
        return _look_at(explorer, line.word("").removeprefix(GENERATION_PREFIX))
    kept = explorer.copies.generations()
    here = explorer.generation.number

    def show() -> None:
        for number in kept:
            typer.echo(f"{number}{' (this one)' if number == here else ''}")

    return ShellAnswer({"generations": kept}, show)


def _look_at(explorer: StateExplorer, text: str) -> ShellAnswer:
    if not text.isascii() or not text.isdecimal():
        raise BadShellCommand(f"{text!r} is no generation", "write its number: cd @2")
    explorer.look_at(int(text))
    manifest = explorer.generation.manifest
    sentence = (
        f"generation {manifest.generation}: revision {manifest.cut_revision},"
        f" {moment(manifest.timestamp)}"
    )
    values: dict[str, Any] = {"cut_revision": manifest.cut_revision, "is_there": True}
    try:
        explorer.node()
    except NoSuchPath as error:
        note = f"{error.message}; the path stays {explorer.text}"
        return ShellAnswer({**values, "is_there": False}, lambda: typer.echo(sentence), note)
    return ShellAnswer(values, lambda: typer.echo(sentence))


def _pwd(explorer: StateExplorer, _: ShellLine) -> ShellAnswer:
    text = f"{GENERATION_PREFIX}{explorer.generation.number} {explorer.text}"
    return ShellAnswer({}, lambda: typer.echo(text))


def _help(_: StateExplorer, __: ShellLine) -> ShellAnswer:
    return ShellAnswer({"help": HELP}, lambda: typer.echo(HELP))


def _exit(_: StateExplorer, __: ShellLine) -> ShellAnswer:
    return ShellAnswer({}, lambda: None)


_COMMANDS: Final[dict[str, Callable[[StateExplorer, ShellLine], ShellAnswer]]] = {
    "ls": _ls,
    "cat": _cat,
    "tree": _tree,
    "find": _find,
    "cd": _cd,
    "generation": _generation,
    "pwd": _pwd,
    "help": _help,
    "exit": _exit,
}


def _first(found: Iterator[StateNode], limit: int) -> tuple[list[StateNode], bool]:
    """Return the first places, and whether there are more."""
    places = list(islice(found, limit))
    return places, next(found, None) is not None


def _places(
    places: list[StateNode], is_more: bool, text: Callable[[StateNode], str], note: str
) -> ShellAnswer:
    def show() -> None:
        for one in places:
            typer.echo(text(one))

    found = {"places": [_place(one) for one in places], "is_more": is_more}
    return ShellAnswer(found, show, note if places else "nothing is there")


def _place(node: StateNode) -> dict[str, Any]:
    return {
        "name": node.part,
        "path": node.text,
        "kind": node.kind or None,
        "has_children": node.has_children,
    }
