"""The public gRPC interface. Built from descriptors; payloads pass through undecoded.

`routes` knows the methods that services claim, `principal` the caller, `admission` the new request
numbers, `normalize` what may enter the log; `unary` and `submit` are the two ways in.
"""
