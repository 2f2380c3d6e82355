"""What the coordinator tells about its work: traces of commands, prepares and snapshots; metrics.

    prepares   one prepare on its way, and the spans that are made of it and its commands
    watch      the hooks in the replica: from the journal until it is applied, stage by stage
    snapshots  the spans of a generation
    start      the spans of a start
    metrics    the Prometheus page
    past       reads of the past on it

`coordinator.base.command_traces` has the notes of a sampled command on its way, and
`coordinator.gateway.telemetry` has where traces come in or begin.

Nothing here decides anything. Replayed commands leave no spans: nobody waits for them.
"""
