"""Reads of the past: the coordinator's side of the process that holds an earlier revision.

* `messages` is what the two say to each other; `process` starts and ends the other one.
* `bases` says where a revision can be built from, and which ones can be.
* `builder` leads the process to a revision: a snapshot, then the log behind it.
* `turns` queues what callers ask, and has users take turns, in the `order` of their waiting.
* `tally` counts builds and questions, for metrics.
"""
