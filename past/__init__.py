"""The past: the state of an earlier revision, apart from the machines that serve the present.

A process of this package (`python -m past`) has a mux and the machines of all domains of its own.
The coordinator that started it sends it a snapshot and the log behind that, so that nothing here
touches a disk, and nothing that is done here holds up a service or the coordinator's loop. It is
the one package that imports both `coordinator` and `services`, and nobody imports it.
"""
