"""The stages as the coordinator's shell reaches them: Apply streams, item logs, the codec.

The mux (pure) decides what each stage is sent and when; this package carries it there and brings
the answers back, through deaths and restarts of the services.
"""
