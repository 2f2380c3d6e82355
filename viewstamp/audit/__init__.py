"""The audit log: who changed what, or was not let, from where and with what outcome.

Each replica keeps one of what it answered, as lines of JSON in rotated files. It is no part of the
state: it is written after the fact by a thread, and what cannot be written is counted and told, and
holds nobody up. `viewstamp audit` reads it.
"""
