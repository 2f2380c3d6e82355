"""Make the pages of the API reference: shapes from the protos' descriptors, texts from comments."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    EnumDescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
    FileDescriptorSet,
    MethodDescriptorProto,
    ServiceDescriptorProto,
)

from tools import api_facts
from viewstamp.api.routing.v1 import routing_pb2

PACKAGE: Final = "viewstamp.api."
# Numbers that protoc writes into the path of a source location.
MESSAGES, ENUMS, SERVICES = 4, 5, 6
METHODS, FIELDS, VALUES, NESTED, NESTED_ENUMS = 2, 2, 2, 3, 4

Path = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Comments:
    """The comments of one proto file, by the path of what they explain."""

    by_path: dict[Path, str]

    @staticmethod
    def of(file: FileDescriptorProto) -> Comments:
        """Return the comments above and beside the declarations of a file."""
        found = {}
        for location in file.source_code_info.location:
            text = location.leading_comments or location.trailing_comments
            if text.strip():
                found[tuple(location.path)] = text
        return Comments(found)

    def paragraph(self, *path: int) -> str:
        """Return the comment of a path with its line breaks, without the margin."""
        lines = self.by_path.get(path, "").strip("\n").splitlines()
        return _escaped("\n".join(line.removeprefix(" ") for line in lines))

    def line(self, *path: int) -> str:
        """Return the comment of a path as one line for a cell of a table."""
        return " ".join(self.paragraph(*path).split()).replace("|", "\\|")


def pages(files: FileDescriptorSet) -> dict[str, str]:
    """Return the text of each page by its file name; one page per package, and an index."""
    found: dict[str, list[str]] = {}
    for file in files.file:
        if file.package.startswith(PACKAGE):
            parts = found.setdefault(f"{_short(file.package)}.md", [])
            parts.insert(0 if file.service else len(parts), "\n".join(_file(file)))
    texts = {name: "\n\n".join([_title(name), *parts]) for name, parts in sorted(found.items())}
    return {"index.md": "\n".join(_index(files)), **texts}


def _index(files: FileDescriptorSet) -> Iterator[str]:
    """Yield the lines of the page that lists every method."""
    yield "# API reference\n"
    yield "`make docs` makes these pages from `protos/`. The comments of the protos are the text.\n"
    yield "| method | kind | since level | who may call it | what it does |"
    yield "|---|---|---|---|---|"
    for file in files.file:
        if not file.package.startswith(PACKAGE):
            continue
        comments = Comments.of(file)
        for i, service in enumerate(file.service):
            for j, method in enumerate(service.method):
                yield _index_row(file, service, method, comments.line(SERVICES, i, METHODS, j))


def _index_row(
    file: FileDescriptorProto,
    service: ServiceDescriptorProto,
    method: MethodDescriptorProto,
    text: str,
) -> str:
    """Return the line of a method; `text` is its comment."""
    address = f"{_short(file.package)}.md#{method.name.lower()}"
    cells = (
        f"[{service.name}.{method.name}]({address})",
        api_facts.kind(method),
        str(api_facts.level(method)),
        _callers(file, method, text),
        text.split(". ", maxsplit=1)[0].removesuffix(".") + ".",
    )
    return f"| {' | '.join(cells)} |"


def _file(file: FileDescriptorProto) -> Iterator[str]:
    """Yield the lines of one proto file: services, then messages, then enums."""
    comments = Comments.of(file)
    yield f"From `protos/{file.name}`.\n"
    for i, service in enumerate(file.service):
        yield from _service(file, service, comments, i)
    for i, message in enumerate(file.message_type):
        yield from _message(message, comments, (MESSAGES, i), "")
    for i, enum in enumerate(file.enum_type):
        yield from _enum(enum, comments, (ENUMS, i), "")


def _service(
    file: FileDescriptorProto, service: ServiceDescriptorProto, comments: Comments, at: int
) -> Iterator[str]:
    """Yield the lines of a service and its methods."""
    yield f"## {service.name}\n"
    shared = comments.paragraph(SERVICES, at)
    yield shared + "\n"
    for j, method in enumerate(service.method):
        yield f"### {method.name}\n"
        text = comments.paragraph(SERVICES, at, METHODS, j)
        yield text + "\n"
        yield f"- kind: {api_facts.kind(method)}{_code(method)}"
        yield f"- who may call it: {_callers(file, method, text)}"
        refused = api_facts.refusals(_plain(shared), _plain(text))
        listed = ", ".join(f"`{name}` ({code})" for name, code in refused)
        yield f"- refusals: {listed or 'those that every call may meet'}"
        yield f"- request: {_type(method.input_type, method.client_streaming)}"
        yield f"- response: {_type(method.output_type, method.server_streaming)}\n"


def _message(message: DescriptorProto, comments: Comments, path: Path, outer: str) -> Iterator[str]:
    """Yield the lines of a message, its fields, and what is declared inside it."""
    name = f"{outer}{message.name}"
    yield f"### {name}\n"
    yield comments.paragraph(*path) + "\n"
    if message.field:
        yield "| number | field | type | meaning |\n|---|---|---|---|"
    for i, field in enumerate(message.field):
        text = comments.line(*path, FIELDS, i)
        level = api_facts.field_level(field)
        if level > 1 and "feature level" not in text:
            text += f" Needs feature level {level}."
        yield f"| {field.number} | `{field.name}` | {_field_type(field)} | {text} |"
    yield ""
    for i, nested in enumerate(message.nested_type):
        yield from _message(nested, comments, (*path, NESTED, i), f"{name}.")
    for i, enum in enumerate(message.enum_type):
        yield from _enum(enum, comments, (*path, NESTED_ENUMS, i), f"{name}.")


def _enum(enum: EnumDescriptorProto, comments: Comments, path: Path, outer: str) -> Iterator[str]:
    """Yield the lines of an enum and its values."""
    yield f"### {outer}{enum.name}\n"
    yield comments.paragraph(*path) + "\n"
    yield "| number | value | meaning |\n|---|---|---|"
    for i, value in enumerate(enum.value):
        yield f"| {value.number} | `{value.name}` | {comments.line(*path, VALUES, i)} |"
    yield ""


def _code(method: MethodDescriptorProto) -> str:
    """Return the code and the feature level of a routed method, as text after its kind."""
    kind = api_facts.kind(method)
    if kind == "direct":
        return ""
    options = method.options.Extensions[getattr(routing_pb2, kind)]
    level = api_facts.level(method)
    since = f", since feature level {level}" if level > 1 else ""
    internal = ", internal" if kind == "command" and options.internal else ""
    return f", code {options.code}{since}{internal}"


def _callers(file: FileDescriptorProto, method: MethodDescriptorProto, text: str) -> str:
    """Return who may call a method; `text` is its comment, escaped."""
    return _escaped(api_facts.callers(_short(file.package), method, _plain(text)))


def _field_type(field: FieldDescriptorProto) -> str:
    """Return the type of a field as a reader of protos would write it."""
    label = "repeated " if field.label == FieldDescriptorProto.LABEL_REPEATED else ""
    if field.proto3_optional:
        label = "optional "
    if field.type_name:
        return label + _type(field.type_name)
    return f"{label}`{FieldDescriptorProto.Type.Name(field.type).removeprefix('TYPE_').lower()}`"


def _type(full_name: str, is_stream: bool = False) -> str:
    """Return a type's name, linked to its page if it is one of ours."""
    stream = "stream of " if is_stream else ""
    name = full_name.removeprefix(".")
    if not name.startswith(PACKAGE):
        return f"{stream}`{name}`"
    package, _, short = name.partition(".v1.")
    anchor = short.replace(".", "").lower()
    return f"{stream}[{short}]({_short(package)}.md#{anchor})"


def _short(package: str) -> str:
    """Return the part of a package's name that distinguishes it from the others."""
    return package.removeprefix(PACKAGE).split(".")[0]


def _title(name: str) -> str:
    return f"# {name.removesuffix('.md').replace('_', ' ').capitalize()}"


def _escaped(text: str) -> str:
    """Return a comment escaped, so that no part of it counts as HTML or as a link."""
    parts = text.split("`")
    # What stands between backticks is shown as it is.
    parts[::2] = [_escaped_words(part) for part in parts[::2]]
    return "`".join(parts)


def _escaped_words(text: str) -> str:
    return text.replace("<", "&lt;").replace("[", "\\[").replace("*", "\\*").replace("_", "\\_")


def _plain(escaped: str) -> str:
    """Return an escaped comment as it was written, apart from its tags."""
    return escaped.replace("\\_", "_").replace("\\*", "*").replace("\\[", "[")
