"""An archive as the source of a restore: found out, fetched, and tidied up."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer

from viewstamp.cli.archive_command import shower
from viewstamp.cli.archive_options import opened_chain
from viewstamp.cli.settings import Settings
from viewstamp.cli.snapshot_options import progress_bar, telling, warn


@dataclass(frozen=True, slots=True)
class ArchiveSource:
    """The archive that a restore is asked for. `staging_bytes` None is the usual bound."""

    place: str
    keys: tuple[Path, ...]
    manifest: int
    staging_bytes: int | None
    accept_plain: bool

    def fetch(self, settings: Settings, asked: dict[str, Any]) -> Path:
        """Fetch what leads to the end that is asked for; return the directory.

        Reports errors, and exits.
        """
        from viewstamp.archive.staging import (
            STAGED_BYTES_MAX,
            STAGED_SUFFIX,
            Staging,
            WantedOfArchive,
            plan_of,
        )

        if asked["copies"] or asked["archive"] is not None:
            raise typer.BadParameter("--copies and --archive are of a replica's directory")
        into = Path(asked["into"]).absolute()
        staged = into.with_name(into.name + STAGED_SUFFIX)
        wanted = WantedOfArchive(
            asked["to_revision"], asked["to_time_us"], asked["generation"], asked["accept_gaps"]
        )
        with telling(settings), progress_bar(settings) as progress:
            chain = opened_chain(self.place, list(self.keys), accept_plain=self.accept_plain)
            found = chain.wanted(self.manifest).manifest
            plan = plan_of(chain.objects, found, wanted)
            staging = Staging(chain.objects, staged)
            staging.fetch(
                plan,
                shower(progress),
                self.staging_bytes or STAGED_BYTES_MAX,
                accept_gaps=wanted.accept_gaps,
            )
        if staging.lost:
            warn(settings, "ARCHIVE_LACKS_OBJECT", f"{staging.lost}; all behind it is lost")
        return staged

    def tidy(self, settings: Settings, staged: Path, *, is_written: bool) -> None:
        """Remove what was fetched once it was restored; a dry run leaves it to the next restore."""
        if is_written:
            with telling(settings):
                shutil.rmtree(staged)


def archive_of(
    source: str,
    keys: list[Path] | None,
    manifest: int,
    staging_bytes: int | None,
    *,
    accept_plain: bool,
) -> ArchiveSource | None:
    """Return the archive that a source is, None if it is a directory of something else."""
    from viewstamp.archive.archive_objects import MANIFESTS, number_of
    from viewstamp.archive.object_store import is_store_address

    names = Path(source, MANIFESTS).glob("*")
    if is_store_address(source) or any(number_of(MANIFESTS + path.name) for path in names):
        return ArchiveSource(source, tuple(keys or ()), manifest, staging_bytes, accept_plain)
    if keys or manifest or staging_bytes or accept_plain:
        raise typer.BadParameter(
            f"{source} is no archive: --archive-key-file, --accept-plain, --manifest and"
            " --staging-bytes are of archives"
        )
    return None
