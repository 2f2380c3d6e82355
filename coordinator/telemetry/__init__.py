"""What the coordinator tells about its work: traces of commands, prepares and snapshots; metrics.

    commands   a sampled command on its way, or several in a row: a few timestamps
    prepares   one prepare on its way, and the spans that are made of both
    gateway    where traces come in or begin, and the SERVER spans
    watch      the hooks in the replica: from the journal to retirement, stage by stage
    snapshots  the spans of a generation
    metrics    the Prometheus page

Nothing here decides anything. Replayed commands leave no spans: nobody waits for them.
"""
