"""The form of every API message and method, so that the coordinator needs no decoder."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from google.protobuf.descriptor import FieldDescriptor, MethodDescriptor
from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    EnumDescriptorProto,
    FileDescriptorProto,
    FileDescriptorSet,
    MethodOptions,
)
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

API = "viewstamp.api."
HEADER = "viewstamp.api.common.v1.ResponseHeader"
ROUTES = ("command", "query")

# Each field has one number in all commands, so that a stage can read it without knowing the method.
SHARED_FIELD_NUMBERS = {
    "stream": 1,
    "topic": 2,
    "permissions": 8,
    "expected_revision": 14,
    "validate_only": 15,
}

# Numbers of the parts of a file, a message and a service in protoc's source paths.
FILE_MESSAGE, FILE_ENUM, FILE_SERVICE = 4, 5, 6
MESSAGE_NESTED, MESSAGE_ENUM = 3, 4
SERVICE_METHOD = 2

SourcePath: TypeAlias = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ProtoMethod:
    """An API method, and its routes: option name (`command` or `query`) to option message."""

    descriptor: MethodDescriptor
    routes: dict[str, Message]

    @property
    def name(self) -> str:
        """The method's full name, as `viewstamp.api.users.v1.UsersService.GetUser`."""
        return self.descriptor.full_name


def methods(files: FileDescriptorSet) -> list[ProtoMethod]:
    """Return all methods of our API with the routes their options declare."""
    pool = DescriptorPool()
    for file in files.file:
        pool.Add(file)
    # The pool that knows our extensions of the options must decode them, too.
    options_class = GetMessageClass(pool.FindMessageTypeByName("google.protobuf.MethodOptions"))
    found = []
    for file in _ours(files):
        for service in file.service:
            for method in service.method:
                name = f"{file.package}.{service.name}.{method.name}"
                descriptor = pool.FindMethodByName(name)
                found.append(ProtoMethod(descriptor, _routes(options_class, method.options)))
    return found


def one_route(method: ProtoMethod, unrouted: dict[str, str]) -> list[str]:
    """Return a line unless the method has one route, or is listed with a reason to have none."""
    count = len(method.routes)
    if method.name in unrouted:
        return [f"{method.name}: is listed as unrouted, yet has a route"] if count else []
    if count == 1:
        return []
    return [f"{method.name}: has {count} of the options {' and '.join(ROUTES)}; exactly 1 is due"]


def unique_codes(all_methods: list[ProtoMethod]) -> list[str]:
    """Return a line per method whose code is 0 or belongs to another method already."""
    lines = []
    owners: dict[int, str] = {}
    for method in all_methods:
        for route in method.routes.values():
            code: int = getattr(route, "code")  # noqa: B009
            if code == 0:
                lines.append(f"{method.name}: has no code")
            elif code in owners:
                lines.append(f"{method.name}: code {code} is already {owners[code]}'s")
            owners.setdefault(code, method.name)
    return lines


def shared_field_numbers(method: ProtoMethod) -> list[str]:
    """Return a line per shared field whose number differs from the agreed one."""
    if "command" not in method.routes:
        return []
    return [
        f"{method.descriptor.input_type.full_name}.{field.name}: has number {field.number},"
        f" {SHARED_FIELD_NUMBERS[field.name]} everywhere else"
        for field in method.descriptor.input_type.fields
        if field.number != SHARED_FIELD_NUMBERS.get(field.name, field.number)
    ]


def dry_run(method: ProtoMethod, exceptions: Mapping[str, str]) -> list[str]:
    """Return a line for a command from outside that cannot be tried, or is wrongly listed."""
    command: Any = method.routes.get("command")
    if command is None or command.internal or "query" in method.routes:
        return []
    can_be_tried = "validate_only" in method.descriptor.input_type.fields_by_name
    if can_be_tried == (method.name in exceptions):
        wrong = "is listed as one that cannot be tried" if can_be_tried else "cannot be tried"
        return [f"{method.name}: {wrong}; give its request `bool validate_only`, or a reason"]
    return []


def paged_list(method: ProtoMethod, exceptions: Mapping[str, str]) -> list[str]:
    """Return a line for a read of a list that has no pages, or is wrongly listed."""
    if "query" not in method.routes or not method.descriptor.name.startswith("List"):
        return []
    is_paged = "page_token" in method.descriptor.input_type.fields_by_name
    if is_paged == (method.name in exceptions):
        wrong = "is listed as one without pages" if is_paged else "has no pages"
        return [f"{method.name}: {wrong}; give its request page_size and page_token, or a reason"]
    return []


def response_header(method: ProtoMethod) -> list[str]:
    """Return a line if a routed method's response does not begin with the header."""
    if not method.routes:
        return []
    response = method.descriptor.output_type
    first: FieldDescriptor | None = response.fields_by_number.get(1)
    if (
        first is not None
        and first.name == "header"
        and first.message_type is not None
        and first.message_type.full_name == HEADER
    ):
        return []
    return [f"{response.full_name}: field 1 must be `{HEADER} header`"]


def map_fields(files: FileDescriptorSet) -> list[str]:
    """Return a line per map field: the order of its entries on the wire is not defined."""
    return [
        f"{file.package}: message {message.name} is the entry of a map field; repeat a message"
        for file in _ours(files)
        for _, message in _messages(file)
        if message.options.map_entry
    ]


def comments(files: FileDescriptorSet) -> list[str]:
    """Return a line per service, method, message or enum that no comment explains."""
    lines = []
    for file in _ours(files):
        commented = {
            tuple(location.path)
            for location in file.source_code_info.location
            if location.leading_comments.strip()
        }
        lines += [
            f"{file.name}: {name} has no comment above it"
            for path, name in _explainable(file)
            if path not in commented
        ]
    return lines


def _ours(files: FileDescriptorSet) -> Iterator[FileDescriptorProto]:
    """Yield the files of our API, leaving out what they import from others."""
    return (file for file in files.file if file.package.startswith(API))


def _routes(options_class: type[Message], options: MethodOptions) -> dict[str, Message]:
    """Return our route options among a method's options."""
    decoded = options_class.FromString(options.SerializeToString())
    return {
        field.name: value
        for field, value in decoded.ListFields()
        if field.is_extension and field.full_name.startswith(API) and field.name in ROUTES
    }


def _messages(file: FileDescriptorProto) -> Iterator[tuple[SourcePath, DescriptorProto]]:
    """Yield every message of a file with its source path, nested ones too."""
    waiting: list[tuple[SourcePath, DescriptorProto]]
    waiting = [((FILE_MESSAGE, i), message) for i, message in enumerate(file.message_type)]
    while waiting:
        path, message = waiting.pop()
        yield path, message
        waiting += [
            ((*path, MESSAGE_NESTED, i), nested) for i, nested in enumerate(message.nested_type)
        ]


def _enums(file: FileDescriptorProto) -> Iterator[tuple[SourcePath, EnumDescriptorProto]]:
    """Yield every enum of a file with its source path, those inside messages too."""
    yield from (((FILE_ENUM, i), enum) for i, enum in enumerate(file.enum_type))
    for path, message in _messages(file):
        yield from (((*path, MESSAGE_ENUM, i), enum) for i, enum in enumerate(message.enum_type))


def _explainable(file: FileDescriptorProto) -> Iterator[tuple[SourcePath, str]]:
    """Yield source path and name of everything in a file that needs a comment."""
    for path, message in _messages(file):
        if not message.options.map_entry:
            yield path, message.name
    for path, enum in _enums(file):
        yield path, enum.name
    for i, service in enumerate(file.service):
        yield (FILE_SERVICE, i), service.name
        for j, method in enumerate(service.method):
            yield (FILE_SERVICE, i, SERVICE_METHOD, j), f"{service.name}.{method.name}"
