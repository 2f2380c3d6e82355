"""Errors of snapshot directories, each with a reason and the next step."""

from __future__ import annotations

from typing import Final

from viewstamp.files_error import FilesError

# So much of a wrong expression is repeated.
EXCERPT_CHARACTERS: Final = 24


class SnapshotFilesError(FilesError):
    """Files of snapshots cannot be used."""

    reason = "BAD_SNAPSHOT_FILES"


class NoSuchDirectory(SnapshotFilesError):  # noqa: N818 - reads as the sentence it is
    """None of the copy directories exists."""

    reason = "NO_SUCH_DIRECTORY"
    is_usage = True


class NoSuchGeneration(SnapshotFilesError):  # noqa: N818 - reads as the sentence it is
    """No copy directory holds the manifest of this generation."""

    reason = "NO_SUCH_GENERATION"
    is_usage = True


class NoCatalogView(SnapshotFilesError):  # noqa: N818 - reads as the sentence it is
    """A data directory has no catalog view: no replica was started with it, or it was deleted."""

    reason = "NO_CATALOG_VIEW"
    is_usage = True


class BadCatalogView(SnapshotFilesError):  # noqa: N818 - reads as the sentence it is
    """The catalog view is damaged, or another build wrote it."""

    reason = "BAD_CATALOG_VIEW"


class AllCopiesBad(SnapshotFilesError):  # noqa: N818 - reads as the sentence it is
    """A file has no good copy left."""

    reason = "ALL_COPIES_BAD"


class NewerFormat(SnapshotFilesError):  # noqa: N818 - reads as the sentence it is
    """The files are intact, and of a format that this build does not know."""

    reason = "NEWER_FORMAT"


class BadSection(SnapshotFilesError):  # noqa: N818 - reads as the sentence it is
    """Intact files do not match the manifest, or an entity in them cannot be decoded."""

    reason = "BAD_SECTION"


class NoSuchEntity(SnapshotFilesError):  # noqa: N818 - reads as the sentence it is
    """A section, kind or key of this name is impossible."""

    reason = "NO_SUCH_ENTITY"
    is_usage = True


class NoSuchPath(SnapshotFilesError):  # noqa: N818 - reads as the sentence it is
    """The tree of a generation has nothing at this path."""

    reason = "NO_SUCH_PATH"
    is_usage = True


class BadShellCommand(SnapshotFilesError):  # noqa: N818 - reads as the sentence it is
    """The shell does not know this command, or not with these words."""

    reason = "BAD_COMMAND"
    is_usage = True


class BadExpression(SnapshotFilesError):  # noqa: N818 - reads as the sentence it is
    """An expression is wrong at the character `position`, counted from 0, of its `text`."""

    reason = "BAD_EXPRESSION"
    is_usage = True

    def __init__(self, text: str, position: int, message: str, next_step: str = "") -> None:
        there = (
            repr(text[position : position + EXCERPT_CHARACTERS]) if text[position:] else "its end"
        )
        super().__init__(
            f"{message}: at character {position + 1} of the expression, {there}", next_step
        )
        self.text = text
        self.position = position


class CannotExport(SnapshotFilesError):  # noqa: N818 - reads as the sentence it is
    """The export cannot be written there."""

    reason = "CANNOT_EXPORT"
    is_usage = True


class AnalyticsMissing(SnapshotFilesError):  # noqa: N818 - reads as the sentence it is
    """The optional libraries for exports are not installed."""

    reason = "ANALYTICS_MISSING"
    is_usage = True


class BadDownload(SnapshotFilesError):  # noqa: N818 - reads as the sentence it is
    """The received data do not match their file names or the manifest."""

    reason = "BAD_DOWNLOAD"
