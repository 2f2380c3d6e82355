"""The settings of shipping to an archive, from the coordinator's flags."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from viewstamp.archive.object_store import STORE_TIMEOUT_MS
from viewstamp.archive.retention import KEEP_MS, KEEP_SNAPSHOTS
from viewstamp.archive.shipping_defaults import PIECE_AGE_MS, SPOOL_BYTES_MAX

# The archive lags for so long before an alarm says so.
LAG_ALARM_MS: Final = 120_000
LAG_ALARM_MS_MIN: Final = 1_000


@dataclass(frozen=True, slots=True)
class ArchiveSettings:
    """Where to ship, and how; the first key encrypts, and 0 keeps all."""

    place: str
    key_files: tuple[Path, ...]
    accept_plain: bool
    piece_ms: int
    spool_bytes: int
    keep_snapshots: int
    keep_ms: int
    timeout_ms: int
    lag_alarm_ms: int


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags."""
    group = parser.add_argument_group(
        "archive", "The committed log and snapshots, shipped by a process beside the coordinator."
    )
    add = group.add_argument
    add(
        "--archive-to",
        metavar="ARCHIVE",
        help="ship to s3://BUCKET/PREFIX or to a directory while this replica is the primary;"
        " endpoint, region and credentials as AWS tools find them",
    )
    add(
        "--archive-key-file",
        action="append",
        type=Path,
        help="encrypt with the key in this file, 64 hexadecimal digits; repeat it for older keys",
    )
    add(
        "--archive-accept-plain",
        action="store_true",
        help="go on behind a manifest that is not encrypted although a key is given",
    )
    numbers = (
        ("piece-ms", PIECE_AGE_MS, "ship entries after this time, however few"),
        ("spool-bytes", SPOOL_BYTES_MAX, "log to keep for the archive once the replica drops it"),
        ("keep-snapshots", KEEP_SNAPSHOTS, "snapshots to keep in the archive; 0 keeps all"),
        ("keep-ms", KEEP_MS, "age up to which the archive can be restored to; 0 keeps all"),
        ("timeout-ms", STORE_TIMEOUT_MS, "how long one attempt of a request to the store may take"),
        ("lag-alarm-ms", LAG_ALARM_MS, "raise an alarm when the archive lags for so long"),
    )
    for name, default, text in numbers:
        add(f"--archive-{name}", type=int, default=default, help=text)


def settings_of(options: argparse.Namespace) -> ArchiveSettings | None:
    """Return the settings, None without an archive. Raises ValueError."""
    place: str | None = options.archive_to
    key_files = tuple(options.archive_key_file or ())
    if place is None:
        if key_files or options.archive_accept_plain:
            raise ValueError("--archive-key-file and --archive-accept-plain need --archive-to")
        return None
    settings = ArchiveSettings(
        place=place,
        key_files=key_files,
        accept_plain=options.archive_accept_plain,
        piece_ms=options.archive_piece_ms,
        spool_bytes=options.archive_spool_bytes,
        keep_snapshots=options.archive_keep_snapshots,
        keep_ms=options.archive_keep_ms,
        timeout_ms=options.archive_timeout_ms,
        lag_alarm_ms=options.archive_lag_alarm_ms,
    )
    for name in ("piece_ms", "spool_bytes", "keep_snapshots", "keep_ms"):
        _check_at_least(settings, name, 0)
    _check_at_least(settings, "timeout_ms", 100)
    _check_at_least(settings, "lag_alarm_ms", LAG_ALARM_MS_MIN)
    return settings


def _check_at_least(settings: ArchiveSettings, name: str, least: int) -> None:
    value = getattr(settings, name)
    if value < least:
        raise ValueError(f"--archive-{name.replace('_', '-')} is {value}: give at least {least}")
