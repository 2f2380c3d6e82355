"""The shared parts of the snapshot commands: places of files, progress, errors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from viewstamp.cli.completing import complete_generation
from viewstamp.cli.documents import document_line
from viewstamp.cli.settings import EXIT_REFUSED, EXIT_USAGE, Settings, fail, told
from viewstamp.files_error import FilesError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress

    from viewstamp.snapshots.copies import Copies

# Generations begin with 1, so 0 asks for the newest.
NEWEST: Final = 0
GenerationArgument = Annotated[
    int,
    typer.Argument(
        min=NEWEST,
        help="Number of the snapshot. Without it, or with 0: the newest that is completed or"
        " has files.",
        metavar="[GENERATION]",
        autocompletion=complete_generation,
        show_default=False,
    ),
]
DirectoryOption = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR",
        help="Read a replica's data directory or a downloaded snapshot, without a cluster.",
    ),
]
DataOption = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR",
        help="Read the catalog view in a replica's data directory, without a cluster.",
    ),
]
FilesOption = Annotated[
    Path,
    typer.Option(
        "--data",
        "--directory",
        metavar="DIRECTORY",
        help="A replica's data directory, running or not, or a downloaded snapshot.",
    ),
]
HereOption = Annotated[
    bool,
    typer.Option(
        "--here", help="Ask the replica at --address alone, even without a quorum; may be old."
    ),
]
CopiesOption = Annotated[
    list[Path] | None,
    typer.Option(
        metavar="DIR",
        help="Read this copy directory, without a cluster; repeat the option for each copy. "
        "Those of a data directory are snapshots/copy-0 to copy-2 below it.",
    ),
]


def offline_copies(directory: Path | None, copies: list[Path] | None) -> Copies | None:
    """Return the named copy directories; None if a cluster is to be asked.

    Raises NoSuchDirectory if none of them is there, BadParameter for both options.
    """
    if directory is not None and copies:
        raise typer.BadParameter("give --directory or --copies, not both")
    if directory is None and not copies:
        return None
    # Imported late: a request to a cluster needs no file formats.
    from viewstamp.snapshots.copies import Copies, copy_directories

    if directory is not None:
        return Copies(copy_directories(directory))
    return Copies(copies or ())


@contextmanager
def telling(
    settings: Settings, next_step: str = "check the directory and its permissions"
) -> Iterator[None]:
    """Report errors of files, and exit: 1 if they are bad, 2 if they cannot be used."""
    try:
        yield
    except FilesError as error:
        code = EXIT_USAGE if error.is_usage else EXIT_REFUSED
        fail(settings, error.reason, error.message, error.next_step, exit_code=code)
    except BrokenPipeError:
        raise  # whoever reads the output has seen enough
    except OSError as error:
        fail(settings, "CANNOT_USE_FILE", told(error), next_step)


def warn_of_bad_copies(settings: Settings, copies: Copies) -> None:
    """Report on stderr which copies were bad."""
    for path, why in sorted(copies.bad.items()):
        warn(settings, "BAD_COPY", f"{path}: {why}")


def warn(settings: Settings, reason: str, message: str) -> None:
    """Report a warning on stderr; the command goes on."""
    if settings.for_programs:
        warning = {"warning": {"reason": reason, "message": message}}
        typer.echo(document_line(settings.output, warning), err=True)
    else:
        typer.echo(f"warning: {reason}: {message}", err=True)


def progress_console(settings: Settings) -> Console:
    """Return a console on stderr for progress, silent for programs."""
    from rich.console import Console

    return Console(stderr=True, quiet=settings.for_programs)


def progress_bar(settings: Settings) -> Progress:
    """Return a progress display for a terminal. It disappears at its end."""
    from rich.progress import Progress

    console = progress_console(settings)
    is_shown = console.is_terminal and not settings.for_programs
    return Progress(console=console, transient=True, disable=not is_shown)
