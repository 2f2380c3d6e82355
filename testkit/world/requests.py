"""Random requests of every public method: fields by name and type, few names, now and then rubbish.

Nothing here knows the state of the cluster. Names are few, so that requests meet each other, and
what answers told (ids, revisions, tokens of pages) comes back in later requests. Nothing names what
belongs to other clients of a run: the stream of the judged registers, and the user root.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from random import Random
from typing import Any, Final

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from testkit.api_methods import methods_by_request
from viewstamp.routing import Method

NAMES: Final = ("a", "b", "c")
BAD_NAMES: Final = ("", "x" * 256, "tab\there", "\x7f", "é" * 200)
USER_NAMES: Final = ("ann", "bob", "cyd")
PASSWORDS: Final = ("correct horse", "battery staple")
# Of the values that a field was told, so many are remembered.
_REMEMBERED_MAX: Final = 20
_UNKNOWN_ID: Final = 1 << 20
_NUMBERS: Final = (0, 1, 2, 3, 5, 1_000, 1 << 32)
# What would end others, or wait for long; and what all topics would depend on from then on. Members
# have an operator of their own.
_NEVER: Final = frozenset(
    {
        *("Submit", "StepDown", "RaiseFeatureLevel", "RegisterBroker"),
        *("AddReplica", "PromoteReplica", "RemoveReplica"),
    }
)


class Requests:
    """Makes requests, and learns from answers."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._told: dict[str, list[Any]] = defaultdict(list)
        self.methods = sorted(
            (each for each in methods_by_request().values() if each.name not in _NEVER),
            key=lambda method: method.code,
        )

    def any(self, *, kind: object = None) -> Message:
        """Return a request of any method, or of any of a kind."""
        choices = [each for each in self.methods if kind is None or each.kind is kind]
        return self.of(self._random.choice(choices))

    def of(self, method: Method) -> Message:
        """Return a request of a method."""
        request = method.request()
        self._fill(request)
        return request

    def learn(self, answer: Message) -> None:
        """Remember what an answer told."""
        for field, value in answer.ListFields():
            if field.name == "header":
                self._remember("revision", value.revision)
            elif field.type != FieldDescriptor.TYPE_MESSAGE and isinstance(value, (int, str)):
                self._remember(field.name, value)

    def _remember(self, name: str, value: Any) -> None:
        told = self._told[name]
        told.append(value)
        del told[:-_REMEMBERED_MAX]

    # --- Fields ---

    def _fill(self, message: Message) -> None:
        """Set most fields of a message."""
        for field in message.DESCRIPTOR.fields:
            if not self.chance(12):
                self._fill_field(message, field)

    def _fill_field(self, message: Any, field: Any) -> None:
        special = _SPECIAL.get(field.name)
        if special is not None:
            special(self, message, field.name)
        elif field.is_repeated:
            self._fill_repeated(message, field)
        elif field.message_type is not None:
            self._fill(getattr(message, field.name))
        else:
            setattr(message, field.name, self._value(field))

    def _fill_repeated(self, message: Any, field: Any) -> None:
        values = getattr(message, field.name)
        for _ in range(self._random.choice((0, 1, 1, 2))):
            if field.message_type is not None:
                self._fill(values.add())
            else:
                values.append(self._value(field))

    def _value(self, field: Any) -> Any:
        """Return a value of the right type."""
        if field.type == FieldDescriptor.TYPE_BOOL:
            return self.chance(4)
        if field.enum_type is not None:
            return self._random.choice([*field.enum_type.values_by_number, 9])
        if field.type == FieldDescriptor.TYPE_STRING:
            return self._random.choice(self._told.get(field.name) or ("", "?"))
        if field.type == FieldDescriptor.TYPE_BYTES:
            return self._random.randbytes(self._random.choice((0, 16, 32)))
        return self._random.choice(self._told.get(field.name) or _NUMBERS) % (1 << 31)

    def chance(self, one_in: int) -> bool:
        """Return True once in so many times."""
        return self._random.randrange(one_in) == 0

    # --- Fields that have a meaning of their own ---

    def _name_entity(self, message: Any, field: str) -> None:
        """Name a stream, topic, group or user: by name, by an id that was told, or by none."""
        identifier, ids = getattr(message, field), self._told.get(f"{field}_id")
        if ids and self.chance(3):
            identifier.id = self._random.choice(ids)
        elif self.chance(20):
            identifier.id = _UNKNOWN_ID
        else:
            identifier.name = self._random.choice(USER_NAMES if field == "user" else NAMES)

    def _choose_name(self, message: Any, field: str) -> None:
        names = BAD_NAMES if self.chance(15) else USER_NAMES if field == "username" else NAMES
        setattr(message, field, self._random.choice(names))

    def _choose_password(self, message: Any, field: str) -> None:
        setattr(message, field, "short" if self.chance(6) else self._random.choice(PASSWORDS))

    def _choose_partitions(self, message: Any, field: str) -> None:
        setattr(message, field, self._random.choice((1, 1, 2, 3, 4, 0, 1_001)))

    def _choose_revision(self, message: Any, field: str) -> None:
        if self.chance(5):
            setattr(message, field, self._random.choice(self._told.get("revision") or (1,)))

    def _leave_out(self, message: Any, field: str) -> None:
        """Leave empty what only the gateway sets, nearly always."""
        if self.chance(40) and field == "password_hash":
            setattr(message, field, "of a caller")

    def _rarely(self, message: Any, field: str) -> None:
        if self.chance(8):
            setattr(message, field, True)

    def _choose_expiry(self, message: Any, field: str) -> None:
        setattr(message, field, self._random.choice((0, 0, 1, 1 << 62)))

    def _choose_page(self, message: Any, field: str) -> None:
        told = self._told.get("next_page_token")
        if told and self.chance(2):
            setattr(message, field, self._random.choice(told))

    def _add_parts(self, message: Any, field: str) -> None:
        for _ in range(self._random.choice((0, 1, 2, 2, 3))):
            method = self._random.choice(self.methods)
            request = b"\xff" if self.chance(20) else self._encoded(method)
            message.parts.add(code=method.code + self.chance(20), request=request)

    def _encoded(self, method: Method) -> bytes:
        """Return a part of a transaction; one in another gets none."""
        return b"" if method.name == "Transact" else self.of(method).SerializeToString()


_SPECIAL: Final[dict[str, Callable[[Requests, Any, str], None]]] = {
    "stream": Requests._name_entity,
    "topic": Requests._name_entity,
    "group": Requests._name_entity,
    "user": Requests._name_entity,
    "name": Requests._choose_name,
    "username": Requests._choose_name,
    "password": Requests._choose_password,
    "new_password": Requests._choose_password,
    "current_password": Requests._choose_password,
    "partitions_count": Requests._choose_partitions,
    "expected_revision": Requests._choose_revision,
    "password_hash": Requests._leave_out,
    "new_password_hash": Requests._leave_out,
    "token_hash": Requests._leave_out,
    "verified_credential_revision": Requests._leave_out,
    "validate_only": Requests._rarely,
    "expires_at": Requests._choose_expiry,
    "page_token": Requests._choose_page,
    "parts": Requests._add_parts,
}
