"""Refusals about brokers and placements; the forms are those of `viewstamp.texts.table`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from viewstamp.api.errors.v1.errors_pb2 import Reason

BROKERS: Final[Mapping[tuple[int, str], str]] = {
    (Reason.REASON_BROKER_NOT_FOUND, ""): (
        "There is no broker {broker!n}; ListBrokers shows those that are registered."
    ),
    (Reason.REASON_REVISION_MISMATCH, "broker"): (
        "Broker {broker!n} was last changed at revision {modified_revision}, not at "
        "{expected_revision}; read it again and decide again."
    ),
    (Reason.REASON_REVISION_MISMATCH, "placements"): (
        "A placement of topic {topic!n} was last changed at revision {modified_revision}, not at "
        "{expected_revision}; list the placements again and decide again."
    ),
    (Reason.REASON_BROKER_IN_USE, ""): (
        "Broker {broker!n} has {replicas_count} replicas; place their partitions on other brokers "
        "first."
    ),
    (Reason.REASON_BROKER_LIMIT, ""): (
        "There are {limit} brokers, as many as there may be; unregister one that is not used."
    ),
    (Reason.REASON_FENCED_BROKER_EPOCH, ""): (
        "Broker {broker_id} acts under epoch {epoch}, and its present one is {broker_epoch}; stop "
        "to lead, and register again."
    ),
    (Reason.REASON_FENCED_BROKER_EPOCH, "fenced"): (
        "Broker {broker_id} was silent for too long or has resigned, so epoch {epoch} is over; "
        "stop to lead, and register again."
    ),
    (Reason.REASON_INVALID_BROKER, "timeout_ms"): (
        "A broker may not be silent for {requested} ms; choose {low} to {high}, or 0 for the "
        "default."
    ),
    (Reason.REASON_INVALID_BROKER, "endpoints_count"): (
        "The broker has {endpoints_count} endpoints; name 1 to {limit}."
    ),
    (Reason.REASON_INVALID_BROKER, "port"): (
        "The port of the endpoint {listener!n} is {port}; choose 1 to {highest}."
    ),
    (Reason.REASON_INVALID_BROKER, "listener_twice"): (
        "Two endpoints of the broker have the same listener; each may be there once."
    ),
    (Reason.REASON_NOT_LEADER, ""): (
        "Broker {broker_id} does not lead partition {partition}; broker {leader} does, in epoch "
        "{leader_epoch} (0 for nobody). List the placements, and act for what it leads."
    ),
    (Reason.REASON_NOT_LEADER, "unstamped"): (
        "Partition {partition} is placed, and the report names no broker; broker {leader} leads it "
        "(0 for nobody). Have that one report, with its stamp."
    ),
    (Reason.REASON_NOT_LEADER, "unseen"): (
        "Broker {broker_id} has not seen what decided at revision {leader_epoch} that it leads "
        "partition {partition}; read on until that revision, and decide again."
    ),
    (Reason.REASON_NOT_ENOUGH_BROKERS, ""): (
        "A partition of the topic has {replication_factor} replicas, and {available} brokers can "
        "be given any; register more, use drained ones again, or lower the replication factor."
    ),
    (Reason.REASON_REPLICAS_NOT_IN_SYNC, ""): (
        "None of the brokers named for partition {partition} has all that was acknowledged; keep "
        "one that is in sync, or set allow_data_loss if there is none any more."
    ),
    (Reason.REASON_MALFORMED_REQUEST, "seen_too_much"): (
        "The broker cannot have seen revision {seen_revision}, which is yet to come."
    ),
    (Reason.REASON_MALFORMED_REQUEST, "replicas_count"): (
        "The request names {replicas_count} brokers for partition {partition}; name 1 to {limit}."
    ),
    (Reason.REASON_MALFORMED_REQUEST, "broker_twice"): (
        "The request names a broker twice for partition {partition}; each may be there once."
    ),
    (Reason.REASON_MALFORMED_REQUEST, "leader_not_in_sync"): (
        "Broker {leader} leads partition {partition}, so it is in sync; name it as well."
    ),
    (Reason.REASON_MALFORMED_REQUEST, "no_replica"): (
        "Broker {broker_id} has no replica of partition {partition}; name brokers that have one."
    ),
    (Reason.REASON_MALFORMED_REQUEST, "fenced_in_sync"): (
        "Broker {broker_id} is fenced, so it cannot come into sync with partition {partition}; "
        "wait until it has registered again."
    ),
    (Reason.REASON_OVERLOADED, "broker_leaves"): (
        "Broker {broker_id} showed no life for too long and is being fenced; try again, and "
        "register again once it is fenced."
    ),
}
