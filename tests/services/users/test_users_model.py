"""The users machine against a model of plain dicts, over random histories."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from services.users.model import UsersState
from services.users.section import SECTION
from tests.services.users.users_support import Users, by_id, by_name, resolved_by_id
from viewstamp import limits
from viewstamp.api.common.v1.common_pb2 import Identifier
from viewstamp.api.domain.v1 import effects_pb2
from viewstamp.api.users.v1 import users_pb2
from viewstamp.api.users.v1 import users_service_pb2 as service
from viewstamp.errors import Refusal
from viewstamp.machine.tables import UndoLog

# Few of everything, so that names are taken, ids are gone and grants overlap all the time.
NAMES = st.sampled_from(["alice", "bob", "carol", "no"])
TOKEN_NAMES = st.sampled_from(["home", "work", "x"])
IDS = st.integers(0, 5)
STREAM_IDS = st.integers(1, 3)
STATUSES = st.sampled_from([0, users_pb2.USER_STATUS_ACTIVE, users_pb2.USER_STATUS_INACTIVE])

# Scope -> flags: ("g",), (stream,) or (stream, topic).
Grants = dict[tuple[Any, ...], frozenset[str]]


@dataclass
class ModelUser:
    """The model's knowledge of a user."""

    name: str
    active: bool
    grants: Grants
    modified: int
    credential: int
    tokens: dict[str, int] = field(default_factory=dict)  # name -> expiry


def message_of(grants: list[tuple[tuple[Any, ...], str]]) -> users_pb2.Permissions:
    """Return a request's permissions, with an entry per grant, so that many are repeated."""
    message = users_pb2.Permissions()
    for scope, flag in grants:
        if scope == ("g",):
            setattr(getattr(message, "global"), flag, True)
        elif len(scope) == 1:
            setattr(message.streams.add(stream=by_id(scope[0])), flag, True)
        else:
            stream = message.streams.add(stream=by_id(scope[0]))
            setattr(stream.topics.add(topic=by_id(scope[1])), flag, True)
    return message


def grants_of(message: users_pb2.Permissions) -> Grants:
    """Return the grants of an answer."""
    grants: Grants = {("g",): flags_of(getattr(message, "global"))}
    for stream in message.streams:
        grants[(stream.stream.id,)] = flags_of(stream)
        for topic in stream.topics:
            grants[(stream.stream.id, topic.topic.id)] = flags_of(topic)
    return {scope: flags for scope, flags in grants.items() if flags}


def flags_of(message: Any) -> frozenset[str]:
    """Return the names of the flags that are set."""
    return frozenset(f.name for f, value in message.ListFields() if value is True)


def united(grants: list[tuple[tuple[Any, ...], str]]) -> Grants:
    """Return the grants of a request, united by scope."""
    result: Grants = {}
    for scope, flag in grants:
        result[scope] = result.get(scope, frozenset()) | {flag}
    return result


GRANTS = st.lists(
    st.one_of(
        st.tuples(st.just(("g",)), st.sampled_from(["manage_users", "read_users"])),
        st.tuples(st.tuples(STREAM_IDS), st.sampled_from(["manage_stream", "poll_messages"])),
        st.tuples(
            st.tuples(STREAM_IDS, st.integers(1, 2)),
            st.sampled_from(["read_topic", "poll_messages"]),
        ),
    ),
    max_size=4,
)


class UsersAgainstModel(RuleBasedStateMachine):
    """Every command is decided by both, in the order of checks that the domain promises."""

    def __init__(self) -> None:
        super().__init__()
        self.users = Users()
        self.model: dict[int, ModelUser] = {}
        self.next_id = 1
        self.tokens_made = 0

    @initialize()
    def found(self) -> None:
        """Found the cluster."""
        self.users.found()
        flags = frozenset(f.name for f in users_pb2.GlobalPermissions.DESCRIPTOR.fields)
        self.model[0] = ModelUser("root", True, {("g",): flags}, 1, 1)

    # --- The expectations of the model ---

    def caller_refusal(self, caller: int, stale: bool, manages: bool = True) -> str | None:
        """Return the reason of the model's refusal, or None."""
        user = self.model.get(caller)
        if user is None or not user.active or stale:
            return "UNAUTHENTICATED"
        if manages and "manage_users" not in user.grants.get(("g",), ()):
            return "PERMISSION_DENIED"
        return None

    def named(self, identifier: Identifier) -> int | None:
        """Return the id that the model knows under an id or name."""
        if identifier.HasField("id"):
            return identifier.id if identifier.id in self.model else None
        return self.id_of(identifier.name)

    def id_of(self, name: str) -> int | None:
        """Return the id of the user of that name."""
        return next((i for i, user in self.model.items() if user.name == name), None)

    def run(self, name: str, request: Any, caller: int, stale: bool, **more: Any) -> str | None:
        """Run a command on the machine; return the reason if it is refused."""
        credential = self.users.credential(caller) - 1 if stale else None
        credential = max(credential, 0) if credential is not None else None
        try:
            self.users.command(name, request, caller, credential=credential, **more)
        except Refusal as refusal:
            return refusal.name
        return None

    def expectation(self, target: int | None, request: Any) -> str | None:
        """Return why a command on a user that passed so far fails on its expected revision."""
        assert target is not None
        if not request.HasField("expected_revision"):
            return None
        matches = request.expected_revision == self.model[target].modified
        return None if matches else "REVISION_MISMATCH"

    def expected_revision(self, identifier: Identifier, way: int) -> int | None:
        """Return no expected revision, the right one, or a wrong one."""
        target = self.named(identifier)
        right = 0 if target is None else self.model[target].modified
        return {0: None, 1: right, 2: right + 1}[way]

    # --- Commands ---

    @rule(caller=IDS, stale=st.booleans(), name=NAMES, status=STATUSES, grants=GRANTS)
    def create(self, caller: int, stale: bool, name: str, status: Any, grants: Any) -> None:
        """Create a user."""
        granted = message_of(grants)
        request = service.CreateUserRequest(
            username=name, password_hash="$h", status=status, permissions=granted
        )
        reason = self.caller_refusal(caller, stale)
        if reason is None and len(name) < limits.USERNAME_BYTES_MIN:
            reason = "INVALID_USERNAME"
        if reason is None and self.id_of(name) is not None:
            reason = "USER_EXISTS"
        context = resolved_by_id(granted)
        assert self.run("CreateUser", request, caller, stale, context=context) == reason
        if reason is None:
            at = self.users.revision
            active = status != users_pb2.USER_STATUS_INACTIVE
            self.model[self.next_id] = ModelUser(name, active, united(grants), at, at)
            self.next_id += 1

    @rule(
        caller=IDS,
        stale=st.booleans(),
        user=st.one_of(IDS.map(by_id), NAMES.map(by_name)),
        name=st.none() | NAMES,
        status=STATUSES,
        way=st.integers(0, 2),
    )
    def update(
        self, caller: int, stale: bool, user: Identifier, name: Any, status: Any, way: int
    ) -> None:
        """Rename a user, or change the status."""
        expected = self.expected_revision(user, way)
        request = service.UpdateUserRequest(
            user=user, username=name, status=status, expected_revision=expected
        )
        target = self.named(user)
        down = status == users_pb2.USER_STATUS_INACTIVE
        reason = self.caller_refusal(caller, stale)
        if reason is None and target is None:
            reason = "USER_NOT_FOUND"
        if reason is None and target == 0 != caller:
            reason = "PERMISSION_DENIED"
        if reason is None and target == 0 and down:
            reason = "CANNOT_CHANGE_ROOT_PERMISSIONS"
        if reason is None and name is not None and len(name) < limits.USERNAME_BYTES_MIN:
            reason = "INVALID_USERNAME"
        reason = reason or self.expectation(target, request)
        if reason is None and name is not None and self.id_of(name) not in (None, target):
            reason = "USER_EXISTS"
        assert self.run("UpdateUser", request, caller, stale) == reason
        if reason is None and target is not None:
            self.updated(self.model[target], name, status)

    def updated(self, user: ModelUser, name: str | None, status: int) -> None:
        """Update the model's user."""
        at = self.users.revision
        active = user.active if not status else status == users_pb2.USER_STATUS_ACTIVE
        if (name or user.name, active) != (user.name, user.active):
            user.modified = at
        if user.active and not active:
            user.credential = at
        user.name, user.active = name or user.name, active

    @rule(caller=IDS, stale=st.booleans(), user=IDS, way=st.integers(0, 2))
    def delete(self, caller: int, stale: bool, user: int, way: int) -> None:
        """Delete a user."""
        expected = self.expected_revision(by_id(user), way)
        request = service.DeleteUserRequest(user=by_id(user), expected_revision=expected)
        reason = self.caller_refusal(caller, stale)
        if reason is None and user not in self.model:
            reason = "USER_NOT_FOUND"
        if reason is None and user == 0:
            reason = "CANNOT_DELETE_ROOT"
        reason = reason or self.expectation(user, request)
        assert self.run("DeleteUser", request, caller, stale) == reason
        if reason is None:
            del self.model[user]

    @rule(caller=IDS, stale=st.booleans(), user=IDS, grants=GRANTS, way=st.integers(0, 2))
    def permit(self, caller: int, stale: bool, user: int, grants: Any, way: int) -> None:
        """Replace the permissions of a user."""
        granted = message_of(grants)
        expected = self.expected_revision(by_id(user), way)
        request = service.UpdatePermissionsRequest(
            user=by_id(user), permissions=granted, expected_revision=expected
        )
        reason = self.caller_refusal(caller, stale)
        if reason is None and user not in self.model:
            reason = "USER_NOT_FOUND"
        if reason is None and user == 0:
            reason = "CANNOT_CHANGE_ROOT_PERMISSIONS"
        reason = reason or self.expectation(user, request)
        context = resolved_by_id(granted)
        assert self.run("UpdatePermissions", request, caller, stale, context=context) == reason
        if reason is None:
            self.model[user].grants = united(grants)
            self.model[user].modified = self.users.revision

    @rule(caller=IDS, stale=st.booleans(), user=IDS, verified=st.sampled_from([None, 0, 1]))
    def change_password(self, caller: int, stale: bool, user: int, verified: Any) -> None:
        """Change a password, with the verified revision absent, right or wrong."""
        revision = None if verified is None else self.users.credential(caller) + verified
        request = service.ChangePasswordRequest(
            user=by_id(user), new_password_hash="$n", verified_credential_revision=revision
        )
        own = caller == user
        reason = self.caller_refusal(caller, stale, manages=not own)
        if reason is None and user not in self.model:
            reason = "USER_NOT_FOUND"
        if reason is None and user == 0 != caller:
            reason = "PERMISSION_DENIED"
        if reason is None and verified != (0 if own else None):
            reason = "INVALID_CREDENTIALS"
        assert self.run("ChangePassword", request, caller, stale) == reason
        if reason is None:
            self.model[user].modified = self.model[user].credential = self.users.revision
            self.model[user].tokens.clear()

    @rule(caller=IDS, name=TOKEN_NAMES, life_us=st.integers(-1, 6))
    def create_token(self, caller: int, name: str, life_us: int) -> None:
        """Create a token; life 0 stands for one that never expires."""
        self.tokens_made += 1
        at = self.users.timestamp + 1
        expires_at = at + life_us if life_us else 0
        request = service.CreatePersonalAccessTokenRequest(
            name=name, expires_at=expires_at, token_hash=self.tokens_made.to_bytes(32, "big")
        )
        reason = self.caller_refusal(caller, stale=False, manages=False)
        if reason is None and len(name) < limits.TOKEN_NAME_BYTES_MIN:
            reason = "INVALID_TOKEN_NAME"
        if reason is None and life_us < 0:
            reason = "INVALID_TOKEN_EXPIRY"
        if reason is None and name in self.model[caller].tokens:
            reason = "TOKEN_EXISTS"
        assert self.run("CreatePersonalAccessToken", request, caller, stale=False) == reason
        if reason is None:
            self.model[caller].tokens[name] = expires_at

    @rule(caller=IDS, name=TOKEN_NAMES)
    def delete_token(self, caller: int, name: str) -> None:
        """Delete a token."""
        request = service.DeletePersonalAccessTokenRequest(name=name)
        reason = self.caller_refusal(caller, stale=False, manages=False)
        if reason is None and name not in self.model[caller].tokens:
            reason = "TOKEN_NOT_FOUND"
        assert self.run("DeletePersonalAccessToken", request, caller, stale=False) == reason
        if reason is None:
            del self.model[caller].tokens[name]

    @rule()
    def expire_tokens(self) -> None:
        """Let the primary propose what is due."""
        due = [p for p in self.users.all_proposals() if p.due <= self.users.timestamp]
        for proposal in due:
            request = service.ExpirePersonalAccessTokenRequest.FromString(proposal.request)
            self.users.command(
                "ExpirePersonalAccessToken", request, limits.SYSTEM_USER_ID, credential=0
            )
            del self.model[request.user_id].tokens[request.name]
        now = self.users.timestamp - len(due)
        left = [expiry for user in self.model.values() for expiry in user.tokens.values()]
        assert not [expiry for expiry in left if 0 < expiry <= now]

    # --- Effects of streams, transactions ---

    @rule(stream_id=STREAM_IDS)
    def stream_deleted(self, stream_id: int) -> None:
        """Drop a deleted stream."""
        effect = effects_pb2.StreamDeleted(stream_id=stream_id)
        self.users.effect(effects_pb2.EffectPayload(stream_deleted=effect))
        self.drop(lambda scope: scope[0] == stream_id)

    @rule(stream_id=STREAM_IDS, topic_id=st.integers(1, 2))
    def topic_deleted(self, stream_id: int, topic_id: int) -> None:
        """Drop a deleted topic."""
        effect = effects_pb2.TopicDeleted(stream_id=stream_id, topic_id=topic_id)
        self.users.effect(effects_pb2.EffectPayload(topic_deleted=effect))
        self.drop(lambda scope: scope == (stream_id, topic_id))

    def drop(self, is_gone: Any) -> None:
        """Drop the model's grants in scopes that are gone."""
        for user in self.model.values():
            kept = {scope: flags for scope, flags in user.grants.items() if not is_gone(scope)}
            if kept != user.grants:
                user.grants, user.modified = kept, self.users.revision

    @rule(user=IDS, name=NAMES)
    def taken_back(self, user: int, name: str) -> None:
        """Change much under a savepoint and take it back: nothing, no index either, has changed."""
        before = [dict(getattr(self.users.state, table).rows) for table in UsersState.__slots__]
        self.users.savepoint()
        grants = [((1,), "manage_stream"), ((2, 1), "read_topic")]
        granted = message_of(grants)
        create = service.CreateUserRequest(
            username="new one", password_hash="$h", permissions=granted
        )
        self.run("CreateUser", create, 0, False, context=resolved_by_id(granted))
        update = service.UpdateUserRequest(user=by_id(user), username=name)
        self.run("UpdateUser", update, 0, False)
        self.run("DeleteUser", service.DeleteUserRequest(user=by_name(name)), 0, False)
        self.users.revert()
        after = [dict(getattr(self.users.state, table).rows) for table in UsersState.__slots__]
        assert after == before

    # --- The invariants ---

    @invariant()
    def machine_equals_model(self) -> None:
        """Check that users, grants and tokens equal the model's, through the API."""
        state = self.users.state
        assert state.users.sorted_keys() == sorted(self.model)
        assert state.next_user_id == self.next_id
        for user_id, expected in self.model.items():
            request = service.GetUserRequest(user=by_name(expected.name))
            got = self.users.query("GetUser", request).user
            active = got.status == users_pb2.USER_STATUS_ACTIVE
            assert (got.id, active) == (user_id, expected.active)
            assert got.modified_revision == expected.modified
            assert grants_of(got.permissions) == expected.grants
            assert state.users.rows[user_id].credential_revision == expected.credential
            assert state.tokens_of(user_id) == tuple(sorted(expected.tokens))

    @invariant()
    def section_round_trip(self) -> None:
        """The section, loaded, gives the same tables and indexes, and the same bytes."""
        entities = self.users.entities()
        loaded = UsersState(UndoLog())
        SECTION.load(loaded, entities)
        for table in UsersState.__slots__:
            assert getattr(loaded, table).rows == getattr(self.users.state, table).rows
        assert list(SECTION.entities(loaded)) == entities == sorted(entities)


TestUsersAgainstModel = UsersAgainstModel.TestCase
TestUsersAgainstModel.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
