"""Hours of load on three real replicas with a kill a minute: what grows, and what is lost.

A round is a minute: the callers of `testkit.torture`, members that commit offsets, one kill, and
the verdict of all its judges. Then everything that the round made is deleted, so that the state
stays as large as it was, and its history is forgotten.

The growth of a process can be told only if it lives. So one replica after another is spared for a
stretch of an hour by default: kills hit the other two, and the spared one steps down when it leads
and a primary is to die. Each life of a process that is long enough has a slope of its own.
"""
