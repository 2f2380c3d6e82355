"""Why an archive cannot be used, each with a reason and the next step."""

from __future__ import annotations

from typing import Final

from viewstamp.files_error import FilesError


class ArchiveError(FilesError):
    """An archive cannot be used."""

    reason = "BAD_ARCHIVE"


class StoreUnreachable(ArchiveError):  # noqa: N818 - reads as the sentence it is
    """The store does not answer, or refuses. It may be tried again."""

    reason = "STORE_UNREACHABLE"


class StoreUnfit(ArchiveError):  # noqa: N818 - reads as the sentence it is
    """The store, or its address, is not one that archives can be in."""

    reason = "STORE_UNFIT"
    is_usage = True


class NoArchive(ArchiveError):  # noqa: N818 - reads as the sentence it is
    """No manifest is there."""

    reason = "NO_ARCHIVE"
    is_usage = True


class PieceMissing(ArchiveError):  # noqa: N818 - reads as the sentence it is
    """A manifest names an object that is not there."""

    reason = "ARCHIVE_LACKS_OBJECT"


class PieceDamaged(ArchiveError):  # noqa: N818 - reads as the sentence it is
    """An object is not what its manifest says."""

    reason = "ARCHIVE_DAMAGED"


class NewerArchive(ArchiveError):  # noqa: N818 - reads as the sentence it is
    """An object is intact, and of a format that this build does not know."""

    reason = "NEWER_FORMAT"


class WrongKey(ArchiveError):  # noqa: N818 - reads as the sentence it is
    """The key of an encrypted object is not among those given."""

    reason = "WRONG_ARCHIVE_KEY"
    is_usage = True


class OtherHistory(ArchiveError):  # noqa: N818 - reads as the sentence it is
    """The archive is of another cluster, or of a log that this replica does not have."""

    reason = "ARCHIVE_OF_ANOTHER_LOG"


class ShipperInUse(ArchiveError):  # noqa: N818 - reads as the sentence it is
    """Another process ships from the same data directory."""

    reason = "SHIPPER_IN_USE"
    is_usage = True


class OutOfArchive(ArchiveError):  # noqa: N818 - reads as the sentence it is
    """The archive does not reach what is wanted of it."""

    reason = "NOT_IN_ARCHIVE"
    is_usage = True


UPGRADE: Final = "use the build that wrote it, or a newer one"
