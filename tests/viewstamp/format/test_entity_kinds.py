"""Kinds: the table agrees with the protos, keys come from fields, and no secret gets through."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from tests.tidy.tree import ROOT
from tests.viewstamp.format.snapshot_builders import SESSIONS, USERS, chains, state_of
from viewstamp.api.routing.v1 import routing_pb2
from viewstamp.api.sessions.v1 import sessions_pb2
from viewstamp.api.users.v1 import users_pb2
from viewstamp.format import FormatError
from viewstamp.format.kinds import KINDS, KindInfo, decode_entity, key_of, redacted, withheld

PROTOS = tuple((ROOT / "protos").rglob("*.proto"))
# A comment, and the message that it stands above.
DOCUMENTED = re.compile(r"((?:^//[^\n]*\n)+)message (\w+Entity) \{", re.MULTILINE)
KIND = re.compile(r"\bkind (\d+)[;,] key:? (.+?)\.(?: |$)", re.IGNORECASE)
IDS = [info.name for info in KINDS.values()]

# Packages of protos whose entities another domain keeps.
KEPT_ELSEWHERE = {"snapshots": "catalog", "cluster": "catalog", "brokers": "streams"}


def documented() -> dict[str, str]:
    """The comment above each entity's message, by the message's full name."""
    comments = {}
    for path in PROTOS:
        text = path.read_text(encoding="utf-8")
        (package,) = re.findall(r"^package ([\w.]+);", text, re.MULTILINE)
        for comment, name in DOCUMENTED.findall(text):
            comments[f"{package}.{name}"] = " ".join(comment.replace("//", "").split())
    return comments


def key_words(text: str) -> list[str]:
    """Return the parts of a key by its comment: "user id as 8 bytes big-endian" is ["user id"]."""
    if text == "empty":
        return []
    parts = re.split(r", (?:then the )?", text)
    named = [re.sub(r" (?:as|in) .*", "", part) for part in parts]
    return [part for part in named if not part.startswith(("each", "8 bytes"))]


def test_every_entity_of_the_protos_has_a_kind() -> None:
    """Table and protos have the same entities, and the table each of them once."""
    messages = [info.message.DESCRIPTOR.full_name for info in KINDS.values()]
    assert sorted(messages) == sorted(documented())
    assert len(set(IDS)) == len(KINDS)


@pytest.mark.parametrize(("stage", "kind"), KINDS, ids=IDS)
def test_kinds_and_keys_are_those_of_the_protos(stage: int, kind: int) -> None:
    """Kind number, stage and key of each entity match the comment on its message."""
    info = KINDS[stage, kind]
    name = info.message.DESCRIPTOR.full_name
    ((number, key),) = KIND.findall(documented()[name])

    assert int(number) == kind
    assert [words.split()[-1] for words in key_words(key)] == [
        re.split(r"[_.]", path)[-1] for path in info.key_fields
    ]
    package = name.split(".")[2]
    domain = KEPT_ELSEWHERE.get(package, package)
    assert routing_pb2.Stage.Name(stage) == f"STAGE_{domain.upper()}"  # type: ignore[arg-type]


def test_kinds_ascend_without_a_gap() -> None:
    """The kinds of each stage are 1, 2, 3 and so on, stages ascending."""
    kinds: dict[int, list[int]] = {}
    for stage, kind in KINDS:
        kinds.setdefault(stage, []).append(kind)
    assert list(kinds) == [stage for stage in routing_pb2.Stage.values() if stage]
    for stage, found in kinds.items():
        assert found == list(range(1, len(found) + 1)), stage


def test_keys_are_made_of_fields() -> None:
    """Integers are 8 bytes big-endian, text comes last as UTF-8, a dot leads into a message."""
    token = users_pb2.PersonalAccessTokenEntity(user_id=258, name="ü")
    reply = sessions_pb2.ReplyEntity(session_id=1, number=2)
    assert key_of(KINDS[USERS, 2], token) == bytes((0, 0, 0, 0, 0, 0, 1, 2)) + b"\xc3\xbc"
    assert key_of(KINDS[SESSIONS, 4], reply) == bytes(7) + b"\1" + bytes(7) + b"\2"
    assert key_of(KINDS[USERS, 3], users_pb2.UsersCountersEntity(next_user_id=3)) == b""
    for stage, chain in chains().items():
        for (kind, key), canonical in state_of(chain).items():
            assert key_of(KINDS[stage, kind], decode_entity(stage, kind, canonical)) == key


def test_text_is_the_last_part_of_a_key() -> None:
    """Only the last field of a key may have any length; otherwise keys would be ambiguous."""
    for info in KINDS.values():
        types = [_field(info, path).type for path in info.key_fields]
        assert types[:-1] == [FieldDescriptor.TYPE_UINT64] * (len(types) - 1)
        assert set(types[-1:]) <= {FieldDescriptor.TYPE_UINT64, FieldDescriptor.TYPE_STRING}


def _field(info: KindInfo, path: str) -> Any:
    descriptor = info.message.DESCRIPTOR
    *outer, name = path.split(".")
    for step in outer:
        inner = descriptor.fields_by_name[step].message_type
        assert inner is not None
        descriptor = inner
    return descriptor.fields_by_name[name]


def test_unknown_kinds_are_refused() -> None:
    """A kind that is not in the table is refused, naming those that are."""
    with pytest.raises(
        FormatError, match="stage 2 has no entities of kind 9; known kinds: 1, 2, 3"
    ):
        decode_entity(USERS, 9, b"")
    with pytest.raises(FormatError, match="stage 9 has no entities of kind 1; known kinds: none"):
        decode_entity(9, 1, b"")


def test_damaged_entities_are_refused() -> None:
    """Bytes that are no message of the kind are refused, naming the kind."""
    with pytest.raises(FormatError, match="an entity of users does not decode"):
        decode_entity(USERS, 1, b"\xff")


def fill(message: Message, depth: int = 0) -> Message:
    """The message with something in every field, recursively."""
    for field in message.DESCRIPTOR.fields:
        if field.message_type is not None:
            inner = getattr(message, field.name)
            fill(inner.add() if field.is_repeated else inner, depth + 1)
            continue
        value: object = 1
        if field.type == FieldDescriptor.TYPE_STRING:
            value = "secret"
        elif field.type == FieldDescriptor.TYPE_BYTES:
            value = b"secret"
        elif field.type == FieldDescriptor.TYPE_BOOL:
            value = True
        if field.is_repeated:
            getattr(message, field.name).append(value)
        elif (
            field.containing_oneof is None
            or message.WhichOneof(field.containing_oneof.name) is None
        ):
            setattr(message, field.name, value)
    return message


def set_fields(message: Message) -> Iterator[FieldDescriptor]:
    """Every field that is set, at any depth."""
    for field, value in message.ListFields():
        yield field
        if field.message_type is not None:
            for inner in value if field.is_repeated else [value]:
                yield from set_fields(inner)


@pytest.mark.parametrize("info", KINDS.values(), ids=IDS)
def test_redaction_takes_marked_fields_and_no_others(info: KindInfo) -> None:
    """Of a full entity exactly the fields marked debug_redact are removed."""
    message = fill(info.message())
    before = message.SerializeToString(deterministic=True)
    marked = {field.full_name for field in set_fields(message) if field.GetOptions().debug_redact}

    left = {field.full_name for field in set_fields(redacted(message))}

    assert left == {field.full_name for field in set_fields(message)} - marked
    assert message.SerializeToString(deterministic=True) == before, "the original was changed"


@pytest.mark.parametrize("info", KINDS.values(), ids=IDS)
def test_what_is_withheld_is_the_rest(info: KindInfo) -> None:
    """Of a full entity exactly the marked fields remain for the comparison."""
    message = fill(info.message())
    before = message.SerializeToString(deterministic=True)
    marked = {field.full_name for field in set_fields(message) if field.GetOptions().debug_redact}

    left = list(set_fields(withheld(message)))

    leaves = {field.full_name for field in left if field.message_type is None}
    assert leaves == marked
    assert message.SerializeToString(deterministic=True) == before, "the original was changed"


def test_an_unknown_field_is_withheld() -> None:
    """A later version's field is compared, too: it may be the whole difference."""
    later = users_pb2.UserEntity.FromString(b"\x08\x01\xfa\x07\x06secret")
    assert withheld(later).SerializeToString() == b"\xfa\x07\x06secret"


def test_the_known_secrets_are_marked() -> None:
    """Redaction covers password hashes, token hashes and replies."""
    user = users_pb2.UserEntity(id=1, password_hash="secret")
    token = users_pb2.PersonalAccessTokenEntity(user_id=1, token_hash=b"secret")
    reply = sessions_pb2.ReplyEntity(number=1, spans=[sessions_pb2.ReplySpan(results=b"secret")])
    for message in (user, token, reply):
        assert b"secret" in message.SerializeToString()
        assert b"secret" not in redacted(message).SerializeToString()


def test_redaction_drops_what_it_does_not_know() -> None:
    """A field of a later version may be a secret, so it does not get through."""
    later = users_pb2.UserEntity.FromString(
        users_pb2.UserEntity(id=1).SerializeToString() + b"\xfa\x07\x06secret"
    )
    assert b"secret" in later.SerializeToString()
    assert redacted(later) == users_pb2.UserEntity(id=1)
