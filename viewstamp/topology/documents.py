"""Documents as topologies, and topologies as documents: YAML, in one or several files."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any, Final

import yaml

from viewstamp.complaints import Complaint, DocumentError
from viewstamp.document_tree import FILE_BYTES_MAX, trees
from viewstamp.topology.layout import TOPOLOGY
from viewstamp.topology.model import DeclaredStream, PruneScope, Topology
from viewstamp.topology.shapes import Json, Place

# What a file on the standard input is called in complaints.
STANDARD_INPUT: Final = "<stdin>"
# No value is longer, so none is broken over several lines.
LINE_CHARACTERS_MAX: Final = 1 << 20
_EXAMPLE: Final = "begin with `version: 1` and `streams:`"
_DUMPER: Final[Any] = getattr(yaml, "CSafeDumper", yaml.SafeDumper)


def read_document(*paths: Path | str) -> Topology:
    """Return what files declare together. Raises OSError, DocumentError."""
    return merged([topology for path in paths for topology in parsed(_text(path), str(path))])


def parsed(text: str, file: str = STANDARD_INPUT) -> list[Topology]:
    """Return what each document of a text declares. Raises DocumentError."""
    found = trees(text, file)
    if not found:
        raise DocumentError([Complaint(file, 0, "", f"it holds no document: {_EXAMPLE}")])
    place = Place(file)
    topologies = [TOPOLOGY.read(tree, place) for tree in found]
    if place.complaints:
        raise DocumentError(place.complaints)
    return topologies


def merged(topologies: Sequence[Topology]) -> Topology:
    """Return what several documents declare together. Raises DocumentError.

    They may share streams. A topic or a user is declared in one of them alone.
    """
    streams: dict[str, DeclaredStream] = {}
    for stream in chain.from_iterable(each.streams for each in topologies):
        earlier = streams.get(stream.name)
        streams[stream.name] = stream if earlier is None else _joined(earlier, stream)
    users = [user for each in topologies for user in each.users]
    _check_distinct("users", (user.username for user in users))
    return Topology(tuple(streams.values()), tuple(users), _joined_scope(topologies))


def values_of(topology: Topology) -> Json:
    """Return a topology as the values of a document."""
    return TOPOLOGY.write(topology)


def dumped(topology: Topology) -> str:
    """Return a topology as the text of a document."""
    text: str = yaml.dump(
        values_of(topology),
        Dumper=_DUMPER,
        sort_keys=False,
        allow_unicode=True,
        width=LINE_CHARACTERS_MAX,
    )
    return text


def _text(path: Path | str) -> str:
    with Path(path).open("rb") as file:
        content = file.read(FILE_BYTES_MAX + 1)
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise DocumentError([Complaint(str(path), line, "", "it is no UTF-8 text")]) from error


def _joined(first: DeclaredStream, second: DeclaredStream) -> DeclaredStream:
    topics = (*first.topics, *second.topics)
    _check_distinct(f"streams[name={first.name}].topics", (topic.name for topic in topics))
    return replace(first, prune=first.prune or second.prune, topics=topics)


def _joined_scope(topologies: Iterable[Topology]) -> PruneScope | None:
    scopes = [each.prune for each in topologies if each.prune is not None]
    if not scopes:
        return None
    return PruneScope(
        tuple(dict.fromkeys(chain.from_iterable(each.streams for each in scopes))),
        tuple(dict.fromkeys(chain.from_iterable(each.users for each in scopes))),
    )


def _check_distinct(path: str, names: Iterable[str]) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            text = f"{name!r} is declared in two documents: declare it in one"
            raise DocumentError([Complaint("documents", 0, path, text)])
        seen.add(name)
