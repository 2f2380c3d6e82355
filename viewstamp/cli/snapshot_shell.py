"""`viewstamp snapshot shell`: the state of a generation as a tree of paths.

It never holds the state. Open sections cost the index of their layers, which are verified whole
when they are first read; a list costs its limit of 100 places. A name is found by reading its
folder up to it, an id by the index. `find` and TAB read folders, TAB 10,000 entities at most.
"""

from __future__ import annotations

import cmd
import sys
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from viewstamp.cli.documents import document_line
from viewstamp.cli.settings import EXIT_REFUSED, EXIT_USAGE, Settings, settings_of, tell
from viewstamp.cli.shell_commands import GENERATION_PREFIX, OPTIONS, answered
from viewstamp.cli.snapshot_options import NEWEST, FilesOption, telling, warn
from viewstamp.snapshots.copies import Copies, copy_directories
from viewstamp.snapshots.errors import BadExpression, SnapshotFilesError
from viewstamp.snapshots.explore.path_parts import HERE, PATH_SEPARATOR
from viewstamp.snapshots.explore.state_explorer import StateExplorer

EXIT: Final = "exit"
END_OF_INPUT: Final = "EOF"
BLANKS: Final = " \t\n"
# TAB looks at so many entities, and offers so many names.
COMPLETION_LOOKS_MAX: Final = 10_000
COMPLETIONS_MAX: Final = 100
INTRODUCTION: Final = "`help` lists the commands, `exit` or Ctrl-D ends; nothing is ever written"
CARET_INDENT: Final = "  "


def shell(
    context: typer.Context,
    data: FilesOption,
    generation: Annotated[
        int, typer.Option(min=NEWEST, help="Number of the snapshot; 0: the newest.")
    ] = NEWEST,
    command: Annotated[
        list[str] | None,
        typer.Option(help="Run this command of the shell; repeat the option for more of them."),
    ] = None,
) -> None:
    """Look around in the state of a snapshot on disk, as in a tree of files, without secrets.

    Commands: ls, cat, tree, find, cd, generation, pwd, help, exit. `help` in the shell explains
    them. `cd @N` looks at the same path in generation N.

    With --command, or with commands in a pipe, nobody is asked anything, and the first error ends:
    1 for damaged files, 2 for a wrong command or path. With --json each command prints one line.

    Example: viewstamp snapshot shell --data data --command 'ls /streams' --json
    """
    settings = settings_of(context)
    with telling(settings):
        explorer = StateExplorer(Copies(copy_directories(data)), generation)
    try:
        _run(settings, explorer, command)
    finally:
        explorer.close()


def _run(settings: Settings, explorer: StateExplorer, commands: list[str] | None) -> None:
    prompt = SnapshotPrompt(settings, explorer, for_scripts=bool(commands))
    if commands:
        for text in commands:
            if prompt.onecmd(text):
                break
    else:
        prompt.cmdloop(INTRODUCTION if prompt.is_interactive else None)
    if prompt.exit_code:
        raise typer.Exit(prompt.exit_code)


class SnapshotPrompt(cmd.Cmd):
    """Reads commands from a terminal or a pipe, and prints the answers."""

    # So that the library finds no command of its own in a line, and completes paths.
    identchars = ""

    def __init__(self, settings: Settings, explorer: StateExplorer, *, for_scripts: bool) -> None:
        """Stand where the explorer stands. Scripts have no prompt, and end at the first error."""
        super().__init__()
        self.exit_code = 0
        is_read = for_scripts or settings.for_programs
        self.is_interactive = not is_read and sys.stdin.isatty()
        self._settings = settings
        self._explorer = explorer
        self._told: set[Path] = set()
        self._prepare()

    def cmdloop(self, intro: Any = None) -> None:
        """Read commands until the end. Ctrl-C ends the command under way."""
        while True:
            try:
                return super().cmdloop(intro)
            except KeyboardInterrupt:
                intro = self.intro = None
                typer.echo("interrupted", err=True)
                if not self.is_interactive:
                    raise

    def preloop(self) -> None:
        """Let TAB complete whole paths, where only blanks end a word."""
        with suppress(ImportError):  # no TAB, where the interpreter was built without it
            import readline

            readline.set_completer_delims(BLANKS)

    def onecmd(self, line: str) -> bool:
        """Run a command; return whether it was the last one."""
        text = line.strip()
        if line == END_OF_INPUT:
            if self.is_interactive:
                typer.echo()
            return True
        if not text:
            return False
        try:
            answer = answered(self._explorer, text)
        except SnapshotFilesError as error:
            self._tell_error(error)
            return self.exit_code != 0
        self._warn()
        if self._settings.for_programs:
            typer.echo(document_line(self._settings.output, answer.values))
        else:
            answer.show()
            if answer.note:
                typer.echo(answer.note, err=True)
        self._prepare()
        return text == EXIT

    def completenames(self, text: str, *_: Any) -> list[str]:
        """Return the commands that begin with a text."""
        return [f"{name} " for name in OPTIONS if name.startswith(text)]

    def completedefault(self, text: str, *_: Any) -> list[str]:
        """Return the paths that begin with a text, from the first entities of their folder."""
        folder, separator, part = text.rpartition(PATH_SEPARATOR)
        # A terminal has no place for an error here: the command itself tells it.
        with suppress(SnapshotFilesError, OSError):
            node = self._explorer.node(folder + separator or HERE)
            if node.has_children:
                looked_at = islice(node.children(), COMPLETION_LOOKS_MAX)
                named = (one for one in looked_at if one.part.startswith(part))
                return [
                    folder + separator + one.part + (PATH_SEPARATOR if one.has_children else " ")
                    for one in islice(named, COMPLETIONS_MAX)
                ]
        return []

    def _prepare(self) -> None:
        number = f"{GENERATION_PREFIX}{self._explorer.generation.number}"
        self.prompt = f"{number} {self._explorer.text}> " if self.is_interactive else ""

    def _tell_error(self, error: SnapshotFilesError) -> None:
        if isinstance(error, BadExpression):
            show_place(self._settings, error)
        tell(self._settings, error.reason, error.message, error.next_step)
        if not self.is_interactive:
            self.exit_code = EXIT_USAGE if error.is_usage else EXIT_REFUSED

    def _warn(self) -> None:
        """Tell each bad copy once."""
        for path, why in sorted(self._explorer.copies.bad.items()):
            if path not in self._told:
                self._told.add(path)
                warn(self._settings, "BAD_COPY", f"{path}: {why}")


def show_place(settings: Settings, error: BadExpression) -> None:
    """Show people a wrong expression with a mark below the place."""
    if settings.for_programs or not error.text.isprintable():
        return
    typer.echo(CARET_INDENT + error.text, err=True)
    typer.echo(CARET_INDENT + " " * error.position + "^", err=True)
