"""Peers: what replicas of one cluster say to each other, over gRPC, on their own addresses.

    peers      `Peers`: what the shell has in hand
    messages   the messages of the shells, beside those of `coordinator.vsr`
    routing    who takes which kind of message: one table
    codec      messages as bytes, and back; prepares stay byte-identical and are verified
    outbox     what waits for one peer: two lanes, bounded, packed
    link       the way to one peer: hello, packets, again and again
    listener   what peers say to this replica
    hello      who connects, and why it may not
    agreement  the digest over the limits that replicas must agree on
    tls        certificates that identify a replica
    files      snapshot files for peers
    fetch      snapshot files from peers
    status     what is known about each peer
    settings   the flags

Between each two replicas there are two streams, one in each direction, each opened by its sender.
Delivery is at most once. Messages keep their order unless more of them wait than fit into one
packet: then votes and heartbeats overtake entries of the log. The protocol (`coordinator.vsr`)
needs no more than that; it repeats important messages.

    events = PeerEvents(receivers=receivers, state=alarm, failed=fail)
    peers = Peers(config, events, snapshots)
    await peers.start()
    peers.send(1, message)
    await peers.stop()

This package knows only the message types of the core.
"""
