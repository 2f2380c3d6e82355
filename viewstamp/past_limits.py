"""Limits of reads of the past and of the histories of entities, each with its unit.

No machine decides by them: replicas may have other values, as they do during an upgrade.
"""

from __future__ import annotations

from typing import Final

from viewstamp.limits import KIB, MIB

# Reads of the past that wait at one replica, and those of one user there.
PAST_READS_WAITING_MAX: Final = 256
PAST_READS_WAITING_PER_USER_MAX: Final = 32
# How long a read of the past may wait: its state may have to be built from a snapshot and the log.
PAST_READ_DEADLINE_MS: Final = 60_000
# Changes in one answer about the history of an entity, roughly, and their bytes; and how long one
# call goes through the log before it answers with what it has.
BLAME_PAGE_MAX: Final = 100
BLAME_PAGE_BYTES_MAX: Final = 1 * MIB
BLAME_WALK_MS: Final = 5_000
# Entities that had one name, one after the other, and are followed.
BLAME_IDS_MAX: Final = 1_000
# A larger entity is left out of its changes.
BLAME_ENTITY_BYTES_MAX: Final = 64 * KIB
# The process of the past is ended if it works at one message for longer: loading a snapshot is one.
PAST_ANSWER_TIMEOUT_MS: Final = 600_000
# The process that holds a state of the past ends when it was not asked for so long.
PAST_IDLE_MS: Final = 60_000
