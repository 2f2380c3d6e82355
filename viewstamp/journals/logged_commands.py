"""The commands of a log entry, decoded by the protos, without their secrets."""

from __future__ import annotations

import pkgutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from importlib import import_module
from typing import Any, Final

from google.protobuf.message import DecodeError

from viewstamp import api
from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.api.log.v1 import log_pb2
from viewstamp.api.submit.v1 import submit_service_pb2
from viewstamp.audit.requests import shown_request
from viewstamp.format.prepare import SealedPrepare
from viewstamp.framing import FramingError, unframe
from viewstamp.journals.journal_errors import UnknownMethod
from viewstamp.routing import Method, MethodKind, methods_of_file

# Of an entry without commands, and of one whose body no build of ours has written.
EMPTY_KIND: Final = "empty"
FOREIGN_KIND: Final = "not decoded"
# Methods that say more than their package does.
KINDS_BY_METHOD: Final = {
    "BeginSnapshot": "snapshot cut",
    "Found": "founding",
    "Transact": "transaction",
}
TRANSACT_CODE: Final = 10
PACKAGE_PREFIX: Final = "viewstamp.api."
SERVICE_SUFFIX: Final = "_service_pb2"


@dataclass(frozen=True, slots=True)
class LoggedCommand:
    """One command. `fields` is None if its bytes are not its message.

    `refused` is why it was refused before the log; then it has no fields. `parts` are those of a
    transaction: without a revision of their own.
    """

    method: str
    code: int
    kind: str
    revision: int = 0
    user_id: int = 0
    session_id: int = 0
    request_number: int = 0
    fields: dict[str, Any] | None = None
    refused: str = ""
    parts: tuple[LoggedCommand, ...] = ()

    def names(self) -> set[str]:
        """Return its method and those of its parts."""
        return {self.method, *(part.method for part in self.parts)}


@cache
def commands_by_code() -> dict[int, Method]:
    """Return every command of the protos by its code; nobody keeps a list of them."""
    found: dict[int, Method] = {}
    for module in pkgutil.walk_packages(api.__path__, PACKAGE_PREFIX):
        if module.name.endswith(SERVICE_SUFFIX):
            methods = methods_of_file(import_module(module.name).DESCRIPTOR)
            found |= {each.code: each for each in methods if each.kind is MethodKind.COMMAND}
    return found


def checked_method(name: str) -> str:
    """Return the name of a command. Raises UnknownMethod."""
    names = sorted(method.name for method in commands_by_code().values())
    if name not in names:
        raise UnknownMethod(
            f"no command is called {name}", f"give one of these: {', '.join(names)}"
        )
    return name


def commands_of(prepare: SealedPrepare) -> list[LoggedCommand] | None:
    """Return the commands of an entry, None if its body is not one of ours."""
    try:
        requests = log_pb2.PrepareBody.FromString(prepare.body).requests
        commands: list[LoggedCommand] = []
        for request in requests:
            for span in request.spans:
                revision = prepare.first_revision + len(commands)
                commands += _commands(request, span, revision)
    except (DecodeError, FramingError):
        return None
    return commands if len(commands) == prepare.command_count else None


def kind_of(commands: Iterable[LoggedCommand] | None) -> str:
    """Return what an entry is about, in a word or several."""
    if commands is None:
        return FOREIGN_KIND
    return "+".join(sorted({command.kind for command in commands})) or EMPTY_KIND


def _commands(
    request: log_pb2.LoggedRequest, span: log_pb2.LoggedSpan, revision: int
) -> Iterator[LoggedCommand]:
    items = unframe(span.items)
    if len(items) != span.count:
        raise FramingError(f"{len(items)} commands, of {span.count}")
    refused = {each.index: _reason(each.error.reason) for each in span.refused}
    for index, item in enumerate(items):
        yield replace(
            _decoded(span.code, item, refused.get(index, "")),
            revision=revision + index,
            user_id=span.user_id,
            session_id=request.session_id,
            request_number=request.number,
        )


def _reason(number: int) -> str:
    """Return why a command was refused; the number of a reason of a later build."""
    known = Reason.DESCRIPTOR.values_by_number.get(number)
    return str(number) if known is None else str(known.name).removeprefix("REASON_")


def _decoded(code: int, item: bytes, refused: str) -> LoggedCommand:
    """Return a command, and the parts of a transaction."""
    command = _alone(code, item, refused)
    if code != TRANSACT_CODE or command.fields is None:
        return command
    transaction = submit_service_pb2.TransactRequest.FromString(item)
    # A transaction among the parts is refused when it is applied, so it is not taken apart.
    parts = tuple(_alone(part.code, part.request, "") for part in transaction.parts)
    without = {name: value for name, value in command.fields.items() if name != "parts"}
    return replace(command, fields=without, parts=parts)


def _alone(code: int, item: bytes, refused: str) -> LoggedCommand:
    method = commands_by_code().get(code)
    if method is None:
        return LoggedCommand(f"code {code}", code, FOREIGN_KIND, refused=refused)
    fields = None if refused else shown_request(method.request, item)
    package = method.full_name.removeprefix(PACKAGE_PREFIX).partition(".")[0]
    kind = KINDS_BY_METHOD.get(method.name, package.replace("_", " "))
    return LoggedCommand(method.name, code, kind, fields=fields, refused=refused)
