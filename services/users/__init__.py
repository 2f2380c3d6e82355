"""The users domain: who exists, how they prove it, and what they may do.

`model` is the state, `commands` and `token_commands` change it, `queries` and `login` read it,
`normalize` takes secrets out of requests before they are logged, `effects` follows the streams
domain, `section` encodes the state, `domain` puts them together.
"""
