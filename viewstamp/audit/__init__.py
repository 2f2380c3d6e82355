"""The audit log: who changed what, or was refused, from where and with what outcome.

Each replica logs the requests that it answered, as lines of JSON in rotated files. The log is not
part of the state: a thread writes it afterwards, and records that cannot be written are counted and
reported, and delay nobody. `viewstamp audit` reads it.
"""
