"""A `KafkaUser` of Strimzi as a user with permissions. No rule gives more than it does in Kafka."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from viewstamp import limits
from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.errors import Refusal
from viewstamp.importer.plan import CatalogueError
from viewstamp.importer.strimzi_topics import Note
from viewstamp.names import check_name
from viewstamp.topology.model import DeclaredUser, Grant, nested

EVERYTHING: Final = "*"
# Operations -> permissions on one topic. A permission needs all operations of its row. In Kafka
# Read, Write, Alter and Delete include Describe.
_ON_TOPIC: Final = (
    (("Read",), ("poll_messages", "read_topic")),
    (("Write",), ("send_messages", "read_topic")),
    (("Describe",), ("read_topic",)),
    (("Alter", "AlterConfigs", "Delete"), ("manage_topic",)),
)
# The same on all topics of a stream.
_ON_STREAM: Final = (
    (("Read",), ("poll_messages", "read_topics")),
    (("Write",), ("send_messages", "read_topics")),
    (("Describe",), ("read_topics",)),
    (("Alter", "AlterConfigs", "Create", "Delete"), ("manage_topics",)),
)
_OPERATIONS: Final = frozenset(
    ("Read", "Write", "Describe", "Alter", "AlterConfigs", "Create", "Delete")
)
# Operations that the permissions for the others include.
_NEEDLESS: Final = frozenset(("DescribeConfigs", "IdempotentWrite"))
# Why rules for resources other than topics are left out.
_ELSEWHERE: Final = MappingProxyType(
    {
        "group": "groups need no permission of their own: who may poll a topic may join its groups",
        "cluster": "give permissions to manage streams, users or servers by hand",
        "transactionalId": "there are no transactional ids",
    }
)


@dataclass(frozen=True, slots=True)
class StrimziUser:
    """A resource: its name, the stream that its topics are in, and its `spec`."""

    name: str
    stream: str
    spec: Mapping[str, Any]


def user_of(user: StrimziUser, topics: Sequence[str], note: Note) -> DeclaredUser | None:
    """Return the user that a resource declares, if the name can be one; tell what is left out.

    `topics` are those of the stream: a rule for a prefix is carried over for each that has it.
    """
    try:
        check_name(
            user.name,
            reason=Reason.REASON_INVALID_USERNAME,
            bytes_min=limits.USERNAME_BYTES_MIN,
            bytes_max=limits.USERNAME_BYTES_MAX,
        )
    except Refusal as refusal:
        note(f"KafkaUser {user.name}", refusal.message)
        return None
    return _Conversion(user, topics, note).user()


class _Conversion:
    """One user."""

    def __init__(self, user: StrimziUser, topics: Sequence[str], note: Note) -> None:
        self._user = user
        self._topics = topics
        self._note = note
        self._grants: set[Grant] = set()

    def user(self) -> DeclaredUser:
        """Return the user."""
        name, spec = self._user.name, self._user.spec
        if "quotas" in spec:
            self._left_out("quotas", "users have no quotas of their own here")
        authentication = spec.get("authentication")
        if isinstance(authentication, dict) and authentication.get("type") != "scram-sha-512":
            kind = authentication.get("type")
            self._left_out(f"authentication {kind}", "users have passwords here")
        authorization = spec.get("authorization")
        if not isinstance(authorization, dict) or authorization.get("type") != "simple":
            self._left_out("authorization", "only that of type simple is carried over")
            return DeclaredUser(name)
        for index, rule in enumerate(_listed(authorization.get("acls"))):
            if not isinstance(rule, dict) or not isinstance(rule.get("resource"), dict):
                raise CatalogueError(
                    f"KafkaUser {name}: acls[{index}] must have a `resource` and `operations`"
                )
            self._add(f"acls[{index}]", rule)
        return DeclaredUser(name, permissions=nested(self._grants))

    def _add(self, place: str, rule: Mapping[str, Any]) -> None:
        resource = rule["resource"]
        kind, name = resource.get("type"), resource.get("name")
        what = f"{place} for {kind} {name or ''}".rstrip()
        if rule.get("type", "allow") != "allow":
            self._left_out(what, "permissions are only given here, never denied")
        elif rule.get("host", EVERYTHING) != EVERYTHING:
            self._left_out(what, "permissions are not bound to a host here")
        elif kind != "topic" or not isinstance(name, str):
            self._left_out(what, _ELSEWHERE.get(str(kind), "this kind of resource is unknown"))
        else:
            self._add_topics(what, name, resource.get("patternType", "literal"), _operations(rule))

    def _add_topics(self, what: str, name: str, pattern: Any, operations: set[str]) -> None:
        given = operations | (_OPERATIONS if "All" in operations else set())
        if pattern == "prefix":
            matching = [topic for topic in self._topics if topic.startswith(name)]
            self._left_out(
                f"{what} as a prefix",
                f"it is carried over for the {len(matching)} topics that have it now, not for "
                "those to come",
            )
            for topic in matching:
                self._grant(what, topic, given, _ON_TOPIC)
        elif name == EVERYTHING:
            self._grant(what, "", given, _ON_STREAM)
        else:
            self._grant(what, name, given, _ON_TOPIC)

    def _grant(self, what: str, topic: str, operations: set[str], table: Any) -> None:
        rest = operations - _NEEDLESS - {"All"}
        for needed, permissions in table:
            if operations.issuperset(needed):
                rest -= set(needed)
                stream = self._user.stream
                self._grants |= {Grant(stream, topic, permission) for permission in permissions}
        if "All" in operations:
            rest.discard("Create")
        if rest:
            words = ", ".join(sorted(rest))
            self._left_out(f"{what}: {words}", "a permission for it would allow more than that")

    def _left_out(self, what: str, reason: str) -> None:
        self._note(f"KafkaUser {self._user.name}: {what}", reason)


def _operations(rule: Mapping[str, Any]) -> set[str]:
    """Return the operations of a rule; older resources have one alone."""
    return {str(each) for each in _listed(rule.get("operations", rule.get("operation")))}


def _listed(value: Any) -> list[Any]:
    if value is None:
        return []
    return value if isinstance(value, list) else [value]
