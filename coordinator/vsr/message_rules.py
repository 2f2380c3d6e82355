"""Which guards a message passes, in order: the tables of the rules that may drop it.

A `Dropped` effect names the first rule that hits. `replica.py` says which rules a message passes in
which status.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from coordinator.vsr import epochs
from coordinator.vsr import message_guards as guards
from coordinator.vsr.effects import DropRule, ReplicaStatus
from coordinator.vsr.messages import (
    CommitMessage,
    CommitOkMessage,
    Message,
    PrepareMessage,
    PrepareOkMessage,
    ReadIndexReplyMessage,
    ReadIndexRequestMessage,
)
from coordinator.vsr.state import ReplicaState

Rules: TypeAlias = tuple[tuple[DropRule, Callable[[ReplicaState, Any], bool]], ...]


def first_hit(rules: Rules, state: ReplicaState, message: Message) -> DropRule | None:
    """Return the first rule that drops `message`; None if it is to be handled."""
    for rule, applies in rules:
        if applies(state, message):
            return rule
    return None


ANY_RULES: Rules = (
    (DropRule.OTHER_CLUSTER, guards.other_cluster),
    (DropRule.OTHER_EPOCH, epochs.of_other_epoch),
    (DropRule.UNKNOWN_SENDER, guards.unknown_sender),
    (DropRule.STANDBY, guards.of_standby),
)
VIEW_RULES: Rules = (
    (DropRule.NEWER_VIEW, guards.newer_view),
    (DropRule.OLDER_VIEW, guards.older_view),
)
FROM_PRIMARY_RULES: Rules = ((DropRule.NOT_FROM_PRIMARY, guards.not_from_primary),)
FOR_PRIMARY_RULES: Rules = ((DropRule.NOT_FOR_BACKUP, guards.not_for_backup),)
PREPARE_RULES: Rules = (
    *FROM_PRIMARY_RULES,
    (DropRule.OTHER_CLUSTER, guards.prepare_of_other_cluster),
    (DropRule.PREPARE_OF_OTHER_VIEW, guards.prepare_of_other_view),
)
NORMAL_PREPARE_RULES: Rules = (
    *PREPARE_RULES,
    (DropRule.PREPARE_OUT_OF_WINDOW, guards.prepare_out_of_window),
    (DropRule.PREPARE_GAP, guards.prepare_gap),
    (DropRule.BROKEN_CHAIN, guards.broken_chain),
    (DropRule.JOURNAL_BACKLOG, guards.journal_backlog),
)
BOOTSTRAP_PREPARE_RULES: Rules = (
    *PREPARE_RULES,
    (DropRule.NOT_THE_BOOTSTRAP_PREPARE, guards.not_the_bootstrap_prepare),
    (DropRule.ALREADY_BOOTSTRAPPED, guards.already_bootstrapped),
    (DropRule.NOT_AN_INITIAL_MEMBER, guards.not_an_initial_member),
)
PREPARE_OK_RULES: Rules = (
    *FOR_PRIMARY_RULES,
    (DropRule.PREPARE_UNKNOWN, guards.prepare_unknown),
)
COMMIT_OK_RULES: Rules = (*FOR_PRIMARY_RULES, (DropRule.OLD_READ_ROUND, guards.old_read_round))
READ_INDEX_REQUEST_RULES: Rules = (
    *FOR_PRIMARY_RULES,
    (DropRule.ABDICATING, guards.leads_no_more),
)
READ_INDEX_REPLY_RULES: Rules = (*FROM_PRIMARY_RULES, (DropRule.OLD_READ_ROUND, guards.not_asked))
HEARD_PRIMARY_RULES: Rules = FROM_PRIMARY_RULES
PRE_VOTE_RULES: Rules = ((DropRule.STALE_PRE_VOTE, guards.stale_pre_vote),)
VOTE_RULES: Rules = (
    (DropRule.OLDER_VIEW, guards.older_view),
    (DropRule.NOT_FOR_BACKUP, guards.not_primary_of),
    (DropRule.RESTARTED_PRIMARY, guards.restarted_primary),
    (DropRule.MALFORMED_LOG, guards.malformed_log),
)
START_VIEW_RULES: Rules = (
    (DropRule.OLDER_VIEW, guards.older_view),
    (DropRule.NOT_FROM_PRIMARY, guards.not_from_primary_of),
    (DropRule.MALFORMED_LOG, guards.malformed_log),
    (DropRule.ALREADY_INSTALLED, guards.already_installed),
    (DropRule.STALE_START_VIEW, guards.stale_start_view),
    (DropRule.UNASKED_START_VIEW, guards.unasked_start_view),
)
REQUEST_START_VIEW_RULES: Rules = (
    (DropRule.NOT_INSTALLED, guards.not_installed),
    (DropRule.ABDICATING, guards.abdicating),
)
REQUEST_PREPARE_RULES: Rules = ((DropRule.NOT_HELD, guards.not_held),)
REPAIR_RULES: Rules = (
    (DropRule.OTHER_CLUSTER, guards.prepare_of_other_cluster),
    (DropRule.OTHER_EPOCH, guards.of_later_epoch),
    (DropRule.NOT_LACKING, guards.repair_not_lacking),
    (DropRule.PREPARE_GAP, guards.repair_gap),
    (DropRule.HEAD_DAMAGED, guards.head_damaged),
    (DropRule.JOURNAL_BACKLOG, guards.committed_backlog),
)
REQUEST_COMMITTED_RULES: Rules = ((DropRule.NOT_HELD, guards.not_committed),)
COMMITTED_RULES: Rules = (
    (DropRule.OTHER_CLUSTER, guards.prepare_of_other_cluster),
    (DropRule.OTHER_EPOCH, guards.of_later_epoch),
    (DropRule.NOT_LACKING, guards.committed_not_lacking),
    (DropRule.LOG_REPLACED, guards.log_replaced),
    (DropRule.HEAD_DAMAGED, guards.head_damaged),
    (DropRule.JOURNAL_BACKLOG, guards.committed_backlog),
)
COMMITTED_GONE_RULES: Rules = ((DropRule.NOT_LACKING, guards.snapshot_not_needed),)
BOOTSTRAPPED_CLUSTER_RULES: Rules = ((DropRule.NOT_BOOTSTRAPPED, guards.not_bootstrapped),)
BOOTSTRAP_REPAIR_RULES: Rules = (
    (DropRule.NOT_THE_BOOTSTRAP_PREPARE, guards.not_the_bootstrap_prepare),
    (DropRule.ALREADY_BOOTSTRAPPED, guards.already_bootstrapped),
    (DropRule.NOT_AN_INITIAL_MEMBER, guards.not_an_initial_member),
)
REQUEST_ADMISSION_RULES: Rules = (
    *FOR_PRIMARY_RULES,
    (DropRule.LAGS_BEHIND, guards.lags_behind),
)
ADMISSION_RULES: Rules = (
    *VIEW_RULES,
    *FROM_PRIMARY_RULES,
    (DropRule.NOT_A_NEWCOMER, guards.not_a_newcomer),
)
ADMISSION_DURABLE_RULES: Rules = (
    *VIEW_RULES,
    *FOR_PRIMARY_RULES,
    (DropRule.ABDICATING, guards.abdicating_already),
)
BLANK_QUERY_RULES: Rules = (
    (DropRule.NOT_FROM_PRIMARY, guards.not_from_bootstrap_primary),
    (DropRule.ALREADY_BOOTSTRAPPED, guards.already_bootstrapped),
)
BLANK_ANSWER_RULES: Rules = (
    *FOR_PRIMARY_RULES,
    (DropRule.STALE_NONCE, guards.stale_nonce),
    (DropRule.ALREADY_BOOTSTRAPPED, guards.already_bootstrapped),
)


VIEWED = (
    PrepareMessage,
    PrepareOkMessage,
    CommitMessage,
    CommitOkMessage,
    ReadIndexRequestMessage,
    ReadIndexReplyMessage,
)
"""The messages of normal operation, which act only in the view that they name."""


def rules_of_view(state: ReplicaState, message: Message) -> Rules:
    """Return the rules on views that apply to this message.

    A blank replica is in no view: a CommitMessage may tell it of a cluster in a later one.
    """
    is_news = state.status is ReplicaStatus.BLANK and isinstance(message, CommitMessage)
    return VIEW_RULES if isinstance(message, VIEWED) and not is_news else ()
