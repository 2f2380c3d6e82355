"""The public gRPC face. Built from descriptors; payloads pass through undecoded.

`routes` knows the methods that services claim, `principal` who calls, `admission` which request
numbers are new, `normalize` what may enter the log; `unary` and `submit` are the two ways in.
"""
