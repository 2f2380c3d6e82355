"""`viewstamp log` shows no secret of any command."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from google.protobuf import message_factory
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from testkit.journal_builders import prepare
from viewstamp.api.log.v1 import log_pb2
from viewstamp.api.submit.v1 import submit_service_pb2 as submit
from viewstamp.audit.requests import SECRET_MARK
from viewstamp.cli.log_rows import LogTable, entry_values
from viewstamp.format.prepare import NO_PARENT, SealedPrepare
from viewstamp.framing import frame
from viewstamp.journals.journal_survey import EntryState, JournalSurvey
from viewstamp.journals.log_entries import LogEntryRecord, RecordPlace
from viewstamp.journals.log_findings import KnownOutside
from viewstamp.journals.logged_commands import TRANSACT_CODE, commands_by_code, commands_of, kind_of

SECRET = "s3cret"
OPEN = "open"
DEPTH_MAX = 4
# Words in the names of fields that nobody may see. Bytes are never shown, whatever their name.
SOUND_SECRET = ("password", "secret", "token", "hash", "credential", "key", "nonce", "private")
METHODS = {method.name: method for method in commands_by_code().values()}


def fields_of(descriptor: Any, seen: set[str]) -> Iterator[FieldDescriptor]:
    """Yield every field of a message, at any depth."""
    if descriptor.full_name in seen:
        return
    seen.add(descriptor.full_name)
    for each in descriptor.fields:
        yield each
        if each.message_type is not None:
            yield from fields_of(each.message_type, seen)


def filled(descriptor: Any, depth: int = 0) -> Message:
    """Return a message with every field set, in secrets and bytes to what nobody may see."""
    message = message_factory.GetMessageClass(descriptor)()
    for each in descriptor.fields:
        if each.message_type is None:
            fill(message, each, _value(each))
        elif depth < DEPTH_MAX:
            fill(message, each, filled(each.message_type, depth + 1))
    return message


def fill(message: Message, each: FieldDescriptor, value: Any) -> None:
    """Set a field, to two values where it is repeated."""
    if each.is_repeated:
        getattr(message, each.name).extend([value, value])
    elif each.message_type is not None:
        getattr(message, each.name).CopyFrom(value)
    elif each.containing_oneof is None or not message.WhichOneof(each.containing_oneof.name):
        setattr(message, each.name, value)


def _value(each: FieldDescriptor) -> Any:
    if each.type == FieldDescriptor.TYPE_BYTES:
        return SECRET.encode()
    if each.type == FieldDescriptor.TYPE_STRING:
        return SECRET if each.GetOptions().debug_redact else OPEN
    return each.enum_type.values[-1].number if each.enum_type is not None else 1


def entry_with(*commands: tuple[int, bytes]) -> SealedPrepare:
    """Return an entry with a request for each command."""
    spans = [log_pb2.LoggedSpan(code=code, count=1, items=frame(item)) for code, item in commands]
    request = log_pb2.LoggedRequest(spans=spans, fingerprint=SECRET.encode())
    body = log_pb2.PrepareBody(requests=[request]).SerializeToString()
    return prepare(1, NO_PARENT, body=body)


def shown(entry: SealedPrepare) -> str:
    """Return all that the command prints of an entry, in both forms."""
    record = LogEntryRecord(RecordPlace(1, 4096, 4096, 1), entry, EntryState.LIVE)
    commands = commands_of(entry)
    assert commands is not None
    survey = JournalSurvey(b"", KnownOutside())
    lines = LogTable(survey).entry(record, kind_of(commands), commands)
    return "\n".join([*lines, json.dumps(entry_values(record, kind_of(commands), commands))])


@pytest.mark.parametrize("name", sorted(METHODS))
def test_no_secret_of_a_command_is_shown(name: str) -> None:
    """Of no command a secret or bytes are shown: alone, padded or in a transaction."""
    method = METHODS[name]
    encoded = filled(method.request.DESCRIPTOR).SerializeToString()
    part = submit.TransactionPart(code=method.code, request=encoded)
    transaction = submit.TransactRequest(parts=[part]).SerializeToString()
    padded = encoded + b"\xfa\x7f\x06" + SECRET.encode()  # an unknown field
    for code, item in (
        (method.code, encoded),
        (method.code, padded),
        (TRANSACT_CODE, transaction),
    ):
        text = shown(entry_with((code, item)))
        for form in (SECRET, SECRET.encode().hex(), "czNjcmV0", r"s3cret"):
            assert form not in text
        assert name in text


def test_fields_that_sound_secret_are_hidden() -> None:
    """Each text of a command that has the name of a secret is marked as one in the protos."""
    seen: set[str] = set()
    fields = [each for m in METHODS.values() for each in fields_of(m.request.DESCRIPTOR, seen)]
    texts = [each for each in fields if each.type == FieldDescriptor.TYPE_STRING]
    sounding = [each for each in texts if any(word in each.name for word in SOUND_SECRET)]
    assert [each.full_name for each in sounding if not each.GetOptions().debug_redact] == []
    hidden = {each.name for each in sounding if each.GetOptions().debug_redact}
    assert hidden >= {"password", "password_hash", "new_password_hash", "root_password_hash"}


def test_a_secret_that_is_set_leaves_a_mark() -> None:
    """A reader sees that a secret was set, and how many bytes other fields hold."""
    method = METHODS["CreatePersonalAccessToken"]
    text = shown(entry_with((method.code, filled(method.request.DESCRIPTOR).SerializeToString())))
    assert f'"token_hash": "{SECRET_MARK}"' in text
    register = METHODS["RegisterSession"]
    encoded = filled(register.request.DESCRIPTOR).SerializeToString()
    assert f'"nonce": "<{len(SECRET)} bytes>"' in shown(entry_with((register.code, encoded)))


def test_transactions_in_transactions_are_not_taken_apart() -> None:
    """However deep transactions are nested, only the first level is decoded."""
    item = b""
    for _ in range(2_000):
        part = submit.TransactionPart(code=TRANSACT_CODE, request=item)
        item = submit.TransactRequest(parts=[part]).SerializeToString()
    (command,) = commands_of(entry_with((TRANSACT_CODE, item))) or []
    assert [(part.method, part.parts) for part in command.parts] == [("Transact", ())]


def test_every_command_is_known() -> None:
    """All codes of commands are known, also those that only the cluster itself gives."""
    assert {"Found", "BeginSnapshot", "Sweep", "FenceBroker", "Transact"} <= METHODS.keys()
    assert len(METHODS) == len(commands_by_code()) > 50
