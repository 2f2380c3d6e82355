"""The TLA+ specification of the protocol, checked by TLC: `docs/tla/README.md` explains both."""
