"""The configuration file: a map of sections in YAML, each a map of settings."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from itertools import islice
from pathlib import Path
from typing import Final

from viewstamp.complaints import COMPLAINTS_MAX, Complaint, DocumentError
from viewstamp.configuration.settings_table import ProgramSetting
from viewstamp.configuration.values import RawValue, WrongValue, words_of_node
from viewstamp.document_tree import MapNode, Node, ScalarKind, ScalarNode, trees
from viewstamp.regular_files import open_regular

# Made by `python -m tools.configuration_reference`; a test compares it with the programs.
SCHEMA_FILE: Final = Path(__file__).with_name("configuration.schema.json")
# Every setting with a long value takes a tenth of it. A check reads the file in five processes at
# once, and the nodes of a hostile text take a hundred times as much memory.
CONFIG_BYTES_MAX: Final = 256 * 1024
# Settings of all domain services; a section with the name of one stands before it.
SERVICES_SECTION: Final = "services"


@dataclass(frozen=True, slots=True)
class ConfigFile:
    """A file that was read; nothing is known yet about the keys in its sections."""

    path: Path
    sections: Mapping[str, MapNode]


@dataclass(slots=True)
class SectionValues:
    """What one section says: the words of each setting and the line of its key."""

    values: dict[str, RawValue] = field(default_factory=dict)
    complaints: list[Complaint] = field(default_factory=list)


def read_config_file(path: Path, sections: Sequence[str]) -> ConfigFile:
    """Return the sections of a file. Raises OSError, and DocumentError with all that is wrong."""
    found = trees(_text(path), str(path))
    if len(found) > 1:
        raise _error(path, found[1].line, "it is a second document: a file holds one")
    if not found:
        return ConfigFile(path, {})
    (tree,) = found
    if not isinstance(tree, MapNode):
        raise _error(path, tree.line, f"it must be a map with the keys {', '.join(sections)}")
    strange = (key for key, _ in tree.entries if key.text not in sections)
    complaints = [
        Complaint(str(path), key.line, key.text, unknown("section", key.text, sections))
        for key in islice(strange, COMPLAINTS_MAX)
    ]
    maps = {key.text: node for key, node in tree.entries if isinstance(node, MapNode)}
    complaints += [
        Complaint(str(path), node.line, key.text, "it must be a map of settings")
        for key, node in tree.entries
        if key.text in sections and key.text not in maps and not _is_nothing(node)
    ]
    if complaints:
        raise DocumentError(complaints)
    return ConfigFile(path, maps)


def read_section(file: ConfigFile, section: str, table: Sequence[ProgramSetting]) -> SectionValues:
    """Return what a section says about the settings of a table, and what is wrong in it."""
    by_name = {setting.name: setting for setting in table}
    read = SectionValues()
    node = file.sections.get(section)
    for key, value in () if node is None else node.entries:
        if len(read.complaints) == COMPLAINTS_MAX:
            break  # to look for similar names takes a while for each
        place = f"{section}.{key.text}"
        try:
            if key.text not in by_name:
                raise WrongValue(unknown("setting", key.text, by_name))
            words = words_of_node(by_name[key.text], value)
        except WrongValue as error:
            read.complaints.append(Complaint(str(file.path), key.line, place, str(error)))
        else:
            if words is not None:
                read.values[key.text] = RawValue(words, f"{file.path}:{key.line}")
    return read


def unknown(what: str, name: str, known: Iterable[str]) -> str:
    """Return that there is no such name, with the nearest one, or all of a few."""
    names = list(known)
    near = get_close_matches(name, names, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(sorted(names))}"
    return f"there is no {what} of this name: {hint}"


def _is_nothing(node: Node) -> bool:
    return isinstance(node, ScalarNode) and node.kind is ScalarKind.NOTHING


def _text(path: Path) -> str:
    with open_regular(path) as file:
        content = file.read(CONFIG_BYTES_MAX + 1)
    if len(content) > CONFIG_BYTES_MAX:
        raise _error(path, 0, f"it is too large: at most {CONFIG_BYTES_MAX:,} bytes")
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise _error(path, line, "it is no UTF-8 text") from error


def _error(path: Path, line: int, text: str) -> DocumentError:
    return DocumentError([Complaint(str(path), line, "", text)])
