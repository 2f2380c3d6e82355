"""Disaster restore: a new cluster from what a lost one has left.

`remains` leads the machines through a snapshot, and through the log of a replica that survived.
`endings` ends there, by the commands that a primary would propose, what must not go on in a new
cluster, and cuts. `jumps` is pure: it moves the numbers of the cut out of reach of the lost
cluster. `directories` writes the cut as the data directories of replicas that have just restarted
from it. Nothing of the source is changed, and the new directories get their name last.
"""
