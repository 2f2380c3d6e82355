"""`viewstamp snapshot list|show --data`: the catalog view of a data directory, with its age."""

from __future__ import annotations

from pathlib import Path

import typer

from viewstamp.cli.documents import document_line
from viewstamp.cli.output import moment, timestamp
from viewstamp.cli.settings import Settings
from viewstamp.cli.snapshot_options import telling
from viewstamp.snapshots import catalog_view
from viewstamp.snapshots.catalog_view import CatalogView


def read_view(settings: Settings, data: Path) -> CatalogView:
    """Read the view of a data directory, or report the error and exit."""
    with telling(settings):
        return catalog_view.read(data)


def tell_age(settings: Settings, view: CatalogView) -> None:
    """Report the time of the view on stderr, because the view has nothing that came later."""
    if settings.for_programs:
        age = {"op": view.op, "revision": view.revision, "written_at": timestamp(view.written_at)}
        typer.echo(document_line(settings.output, {"catalog_view": age}), err=True)
        return
    typer.echo(
        f"as of op {view.op}, revision {view.revision}, written {moment(view.written_at)}: what one"
        " replica knew then. It may not know of later snapshots",
        err=True,
    )
