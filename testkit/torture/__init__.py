"""Real replicas under load and faults, round after round, and judges of all that callers saw.

A round is a cluster of three replicas, each a coordinator with its services as real processes on a
real disk. Callers write and read over all domains (`writers`, `readers`), sessions send numbered
requests again and again (`testkit.load`), and a schedule from a seed hurts the processes, their
links, disks and clocks (`schedule`, `injector`). Then the faults end, and what was recorded is
judged (`judge`): strict serializability, exactly-once sessions, snapshots, equal replicas.
"""
