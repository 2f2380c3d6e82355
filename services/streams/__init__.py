"""What exists: streams, topics and partitions, and who may see and change them.

Brokers report where the data of partitions begins and ends: `watermarks`.

`access` explains how a request is authorized, and what callers without sight of an entity are told.
"""
