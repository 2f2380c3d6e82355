"""The sequential model: what each command must come to, taken in the order of revisions.

Written from the documented API, not from the services: small, plain, and slow.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from testkit.load.commands import Command, CommandKind, LoadOutcome
from testkit.load.state import Grant, LoadGroup, LoadState, LoadStream, LoadTopic, LoadUser


class _Refused(Exception):  # noqa: N818 - an outcome, as in the API
    """The command must be refused for this reason."""


class LoadModel:
    """A state that commands are applied to, one after another. Callers are root's sessions."""

    def __init__(self, state: LoadState) -> None:
        self.state = state

    def apply(self, command: Command, session: int, revision: int, outcome: LoadOutcome) -> str:
        """Apply a command; return the reason it must be refused for, or "".

        A new entity takes its id from the outcome, and its revision from the command.
        """
        try:
            _RULES[command.kind](self, command, session, revision, outcome.entity_id)
        except _Refused as refused:
            return str(refused)
        return ""

    def _stream(self, command: Command) -> LoadStream:
        stream = self.state.streams.get(command.stream)
        if stream is None:
            raise _Refused("STREAM_NOT_FOUND")
        return stream

    def _topic(self, command: Command) -> LoadTopic:
        topic = self._stream(command).topics.get(command.topic)
        if topic is None:
            raise _Refused("TOPIC_NOT_FOUND")
        return topic

    def _group(self, command: Command) -> LoadGroup:
        group = self._topic(command).groups.get(command.group)
        if group is None:
            raise _Refused("GROUP_NOT_FOUND")
        return group

    def _user(self, command: Command) -> LoadUser:
        user = self.state.users.get(command.name)
        if user is None:
            raise _Refused("USER_NOT_FOUND")
        return user

    def _create_stream(self, command: Command, session: int, revision: int, new_id: int) -> None:
        _must_be_free(command.stream in self.state.streams, "STREAM_EXISTS")
        self.state.streams[command.stream] = LoadStream(new_id, revision)

    def _delete_stream(self, command: Command, session: int, revision: int, new_id: int) -> None:
        stream = self._stream(command)
        del self.state.streams[command.stream]
        for user in self.state.users.values():
            user.grants = {grant for grant in user.grants if grant.stream_id != stream.id}

    def _create_topic(self, command: Command, session: int, revision: int, new_id: int) -> None:
        topics = self._stream(command).topics
        _must_be_free(command.topic in topics, "TOPIC_EXISTS")
        topics[command.topic] = LoadTopic(new_id, revision, command.partitions)

    def _delete_topic(self, command: Command, session: int, revision: int, new_id: int) -> None:
        topic = self._topic(command)
        del self._stream(command).topics[command.topic]
        for user in self.state.users.values():
            user.grants = {grant for grant in user.grants if grant.topic_id != topic.id}

    def _create_group(self, command: Command, session: int, revision: int, new_id: int) -> None:
        groups = self._topic(command).groups
        _must_be_free(command.group in groups, "GROUP_EXISTS")
        groups[command.group] = LoadGroup(new_id, revision)

    def _delete_group(self, command: Command, session: int, revision: int, new_id: int) -> None:
        self._group(command)
        del self._topic(command).groups[command.group]

    def _join(self, command: Command, session: int, revision: int, new_id: int) -> None:
        self._group(command).members.add(session)

    def _leave(self, command: Command, session: int, revision: int, new_id: int) -> None:
        members = self._group(command).members
        if session not in members:
            raise _Refused("NOT_A_MEMBER")
        members.remove(session)

    def _create_user(self, command: Command, session: int, revision: int, new_id: int) -> None:
        _must_be_free(command.name in self.state.users, "USER_EXISTS")
        self.state.users[command.name] = LoadUser(new_id, revision)

    def _delete_user(self, command: Command, session: int, revision: int, new_id: int) -> None:
        self._user(command)
        del self.state.users[command.name]

    def _grant(self, command: Command, session: int, revision: int, new_id: int) -> None:
        user = self._user(command)
        user.grants = {Grant(self._stream(command).id, 0)}

    def _create_token(self, command: Command, session: int, revision: int, new_id: int) -> None:
        _must_be_free(command.name in self.state.tokens, "TOKEN_EXISTS")
        self.state.tokens[command.name] = revision

    def _delete_token(self, command: Command, session: int, revision: int, new_id: int) -> None:
        if command.name not in self.state.tokens:
            raise _Refused("TOKEN_NOT_FOUND")
        del self.state.tokens[command.name]


_RULES: Final[Mapping[CommandKind, Callable[[LoadModel, Command, int, int, int], None]]] = {
    CommandKind.CREATE_STREAM: LoadModel._create_stream,
    CommandKind.DELETE_STREAM: LoadModel._delete_stream,
    CommandKind.CREATE_TOPIC: LoadModel._create_topic,
    CommandKind.DELETE_TOPIC: LoadModel._delete_topic,
    CommandKind.CREATE_GROUP: LoadModel._create_group,
    CommandKind.DELETE_GROUP: LoadModel._delete_group,
    CommandKind.JOIN: LoadModel._join,
    CommandKind.LEAVE: LoadModel._leave,
    CommandKind.CREATE_USER: LoadModel._create_user,
    CommandKind.DELETE_USER: LoadModel._delete_user,
    CommandKind.GRANT: LoadModel._grant,
    CommandKind.CREATE_TOKEN: LoadModel._create_token,
    CommandKind.DELETE_TOKEN: LoadModel._delete_token,
}


def _must_be_free(taken: bool, reason: str) -> None:
    if taken:
        raise _Refused(reason)
