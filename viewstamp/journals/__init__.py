"""The journal of a replica's data directory without its replica: read, decoded, never changed.

A start reads a journal to repair it. Here the same bytes are read while nobody, or somebody else,
has the directory: nothing is locked, written or repaired. `journal_survey` walks over all segments
once and keeps only what the meaning of records depends on: cuts, restarts, damage. `log_entries`
walks again and yields one entry at a time, and `logged_commands` decodes it without its secrets.
"""

from __future__ import annotations
