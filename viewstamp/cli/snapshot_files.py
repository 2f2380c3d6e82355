"""`viewstamp snapshot verify|download|inspect|export`, and the views of directories."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import groupby, islice
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from viewstamp.cli.output import moment, print_table, printed, printed_lines
from viewstamp.cli.session import run
from viewstamp.cli.settings import EXIT_REFUSED, Settings, settings_of
from viewstamp.cli.snapshot_options import (
    NEWEST,
    CopiesOption,
    DirectoryOption,
    GenerationArgument,
    offline_copies,
    progress_bar,
    telling,
    warn,
    warn_of_bad_copies,
)
from viewstamp.client import Client, StreamBroken
from viewstamp.snapshots import views
from viewstamp.snapshots.copies import INTACT, Copies
from viewstamp.snapshots.download import AGAIN, Download
from viewstamp.snapshots.entities import SECTION_NAMES, select, selection
from viewstamp.snapshots.errors import BadDownload, SnapshotFilesError
from viewstamp.snapshots.export import export as write_export
from viewstamp.snapshots.generation import Generation
from viewstamp.snapshots.verify import FileVerdict, GenerationVerdict
from viewstamp.snapshots.verify import verify as verify_files

ENTITIES_SHOWN: Final = 100
# Narrow enough for a terminal of 80 columns.
LIST_COLUMNS: Final = ("generation", "revision", "cut_at", "entities", "bytes", "layers")
SECTION_COLUMNS: Final = ("section", "version", "entities", "size_bytes", "layers")
KIND_COLUMNS: Final = ("section", "kind", "entities")
LAYER_COLUMNS: Final = ("section", "cut", "against", "entries", "tombstones", "bytes", "file")
# Enough digits of a layer's digest to find its file.
FILE_DIGITS: Final = 8


# --- Views of a directory ---


def list_directory(settings: Settings, copies: Copies) -> None:
    """Print the generations that have a manifest here, newest first."""
    rows = []
    for number in reversed(copies.generations()):
        try:
            rows.append(views.about(Generation(copies, number)))
        except SnapshotFilesError as error:
            warn(settings, error.reason, error.message)
    warn_of_bad_copies(settings, copies)
    if printed(settings, rows, (str(row["generation"]) for row in rows)):
        return
    if rows:
        print_table(LIST_COLUMNS, map(_short, rows))
    else:
        typer.echo(f"no snapshots in {', '.join(map(str, copies.directories))}")


def show_directory(settings: Settings, copies: Copies, number: int) -> None:
    """Print the manifest of a generation."""
    generation = Generation(copies, number)
    warn_of_bad_copies(settings, copies)
    about = views.about(generation)
    parts = views.sections_of(generation)
    if printed(settings, {**about, "sections": parts}, [str(generation.number)]):
        return
    about["timestamp"] = moment(about["timestamp"])
    fields = [{"field": name, "value": value} for name, value in about.items()]
    print_table(("field", "value"), fields, f"snapshot {generation.number}")
    summaries = ({**part, "layers": len(part["layers"])} for part in parts)
    print_table(SECTION_COLUMNS, summaries, "sections")
    kinds = ({"section": part["section"], **kind} for part in parts for kind in part["kinds"])
    print_table(KIND_COLUMNS, kinds, "entities")
    layers = (_layer(part["section"], layer) for part in parts for layer in part["layers"])
    print_table(LAYER_COLUMNS, layers, "layers, base first")
    for part in parts:
        typer.echo(f"digest of {part['section']}: {part['state_digest']}")


def _short(about: dict[str, Any]) -> dict[str, Any]:
    """Return a row with the columns of the list under short names."""
    cut_at = moment(about["timestamp"])
    return {
        **about,
        "revision": about["cut_revision"],
        "cut_at": cut_at,
        "bytes": about["size_bytes"],
    }


def _layer(section: str, layer: dict[str, Any]) -> dict[str, Any]:
    """Return a row with the columns of the table of layers under short names."""
    return {
        **layer,
        "section": section,
        "cut": layer["generation"],
        "against": layer["base_generation"] or "nothing",
        "bytes": layer["size_bytes"],
        "file": layer["digest"][:FILE_DIGITS],
    }


# --- verify ---


def verify(
    context: typer.Context,
    generation: GenerationArgument = NEWEST,
    directory: DirectoryOption = None,
    copies: CopiesOption = None,
) -> None:
    """Look at every copy of every file, and recompute digests and root from the layers.

    A cluster repairs bad copies from good ones; on a directory nothing is written. Exits with 1 if
    anything is wrong.
    """
    settings = settings_of(context)
    files: list[FileVerdict] = []
    with telling(settings), progress_bar(settings) as progress:
        task = progress.add_task("verifying", total=None)

        def looked_at(verdict: FileVerdict) -> None:
            files.append(verdict)
            total = len(files) + verdict.files_left
            progress.update(task, total=total, completed=len(files))

        there = offline_copies(directory, copies)
        if there is None:
            verdict = run(context, lambda client: _verify_online(client, generation, looked_at))
        else:
            verdict = _verify_offline(there, generation, looked_at)
    _tell_verdict(settings, files, verdict)
    if verdict.problems or not verdict.is_intact:
        raise typer.Exit(EXIT_REFUSED)


def _verify_offline(copies: Copies, generation: int, looked_at: Any) -> GenerationVerdict:
    for verdict in verify_files(copies, generation):
        if isinstance(verdict, GenerationVerdict):
            return verdict
        looked_at(verdict)
    raise AssertionError("a verification ends with a verdict on the whole")


async def _verify_online(client: Client, generation: int, looked_at: Any) -> GenerationVerdict:
    whole: GenerationVerdict | None = None
    async for message in client.snapshots.verify(generation):
        if message.file:
            looked_at(FileVerdict(message.file, tuple(message.copies), message.files_left))
        else:
            whole = GenerationVerdict(message.is_intact, tuple(message.problems))
    if whole is None:
        raise StreamBroken("the verification ended without a verdict on the whole")
    return whole


def _tell_verdict(settings: Settings, files: list[FileVerdict], verdict: GenerationVerdict) -> None:
    told = [{"file": one.file, "copies": list(one.copies)} for one in files]
    whole = {"is_intact": verdict.is_intact, "problems": list(verdict.problems), "files": told}
    if printed(settings, whole):
        return
    for one in files:
        for number, text in enumerate(one.copies):
            if text != INTACT:
                typer.echo(f"{one.file}, copy {number}: {text}")
    for problem in verdict.problems:
        typer.echo(f"problem: {problem}")
    checked = "digests and root recomputed from the layers"
    fits = "are those of the manifest" if verdict.is_intact else "do NOT fit the manifest"
    typer.echo(f"{len(files)} files looked at; {checked} {fits}")


# --- download ---


def download(
    context: typer.Context,
    generation: GenerationArgument = NEWEST,
    *,
    output: Annotated[
        Path,
        typer.Option(
            metavar="DIR", help="Target directory; files that are there already are kept."
        ),
    ],
) -> None:
    """Download the files of a snapshot into layers/ and manifests/ below a directory, and verify.

    They hold the hashes of passwords and tokens: keep them like the data directory. After a
    failure, the same command goes on.
    """
    settings = settings_of(context)
    with telling(settings):
        got = fetch(context, settings, generation, output)
        verdict = _verify_offline(Copies([output]), got.generation, lambda _: None)
        if verdict.problems or not verdict.is_intact:
            raise BadDownload(f"what came is damaged: {'; '.join(verdict.problems)}", AGAIN)
    values = {
        "directory": str(output),
        "generation": got.generation,
        "files": got.files,
        "files_kept": got.files_kept,
    }
    if not printed(settings, values):
        typer.echo(
            f"downloaded generation {got.generation} into {output}: {got.files} files,"
            f" {got.files_kept} of them were there; all verified"
        )


def fetch(context: typer.Context, settings: Settings, generation: int, directory: Path) -> Download:
    """Download into a directory. Raises BadDownload, OSError."""
    import zstandard  # noqa: F401 - without it nothing can be verified: so nothing is downloaded

    with progress_bar(settings) as progress, Download(directory) as got:
        task = progress.add_task("downloading", total=None)
        failures: list[Exception] = []

        async def receive(client: Client) -> None:
            try:
                async for chunk in client.snapshots.download(generation):
                    got.receive(chunk)
                    progress.update(task, total=chunk.total_bytes, advance=len(chunk.data))
            except StreamBroken as error:
                failures.append(BadDownload(str(error), AGAIN))
            except OSError as error:
                # Not errors of the connection: `run` reports those.
                failures.append(error)

        run(context, receive)
        for failure in failures:
            raise failure
        got.finish()
        return got


# --- inspect ---


def inspect(
    context: typer.Context,
    generation: GenerationArgument = NEWEST,
    *,
    section: Annotated[str, typer.Option(help=f"One of {', '.join(SECTION_NAMES.values())}.")],
    kind: Annotated[str | None, typer.Option(help="Only this kind, such as user or topic.")] = None,
    key: Annotated[
        str | None,
        typer.Option(
            help="Only entities whose key begins with this: key values joined by slashes"
            " (7/12 is topic "
            "12 of stream 7, 7 every topic of it), or 0x and hexadecimal digits."
        ),
    ] = None,
    limit: Annotated[
        int, typer.Option(min=0, help="Number of entities to show; 0 for all.")
    ] = ENTITIES_SHOWN,
    directory: DirectoryOption = None,
    copies: CopiesOption = None,
) -> None:
    """Show entities of a section, without secrets; with --json one JSON object per line.

    Without --directory or --copies the snapshot is downloaded to a temporary directory first.
    """
    settings = settings_of(context)
    with telling(settings):
        chosen = selection(section, kind, key)
        with _opened(context, generation, directory, copies) as opened:
            found = select(opened, chosen)
            shown = views.rows(islice(found, limit) if limit else found)
            _print_entities(settings, shown)
            is_more = limit and next(found, None) is not None
            warn_of_bad_copies(settings, opened.copies)
    if is_more:
        typer.echo(f"these are the first {limit}: raise --limit for more", err=True)


def _print_entities(settings: Settings, rows: Iterator[tuple[str, dict[str, Any]]]) -> None:
    if settings.for_programs:
        printed_lines(settings, ({"kind": kind, **row} for kind, row in rows))
        return
    is_empty = True
    for kind, group in groupby(rows, key=lambda named: named[0]):
        found = [row for _, row in group]
        print_table(tuple(found[0]), found, kind)
        is_empty = False
    if is_empty:
        typer.echo("no such entities")


# --- export ---


def export(
    context: typer.Context,
    generation: GenerationArgument = NEWEST,
    *,
    output: Annotated[
        Path, typer.Option(metavar="DIR", help="Target directory; must be empty or missing.")
    ],
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace an existing export.")
    ] = False,
    directory: DirectoryOption = None,
    copies: CopiesOption = None,
) -> None:
    """Write a snapshot as Parquet tables for analysis, one per kind of entity, without secrets.

    `_SUCCESS` comes last: without it the export is not whole. docs/export.md describes the tables.
    Needs the extra `analytics`. Without --directory or --copies the snapshot is downloaded to a
    temporary directory first.
    """
    settings = settings_of(context)
    with telling(settings), _opened(context, generation, directory, copies) as opened:
        with progress_bar(settings) as progress:
            task = progress.add_task("exporting", total=opened.entities)
            written = write_export(
                opened,
                output,
                overwrite=overwrite,
                progress=lambda count: progress.advance(task, count),
            )
        warn_of_bad_copies(settings, opened.copies)
        number = opened.number
    values = {"directory": str(output), "generation": number, "rows": written.rows}
    if printed(settings, values):
        return
    print_table(("table", "rows"), ({"table": name, "rows": n} for name, n in written.rows.items()))
    typer.echo(f"exported generation {number} to {output}")


@contextmanager
def _opened(
    context: typer.Context, generation: int, directory: Path | None, copies: list[Path] | None
) -> Iterator[Generation]:
    """Open a generation on disk, or download it for the time of the context."""
    there = offline_copies(directory, copies)
    if there is not None:
        yield Generation(there, generation)
        return
    temporary = Path(tempfile.mkdtemp(prefix="viewstamp-snapshot-"))
    try:
        got = fetch(context, settings_of(context), generation, temporary)
        yield Generation(Copies([temporary]), got.generation)
    finally:
        shutil.rmtree(temporary)
