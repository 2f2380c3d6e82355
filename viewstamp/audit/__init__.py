"""The audit log: who changed what, or was refused, from where and with what outcome.

Each replica logs the requests that it answered, as lines of JSON in rotated files. The log is not
part of the state: a thread writes it after the reply. Records that cannot be written are counted
and reported, and they delay nobody. `viewstamp audit` reads it.
"""
