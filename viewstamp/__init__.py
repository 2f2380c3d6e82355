"""What a client of Viewstamp installs: API stubs, client library, command line, limits, errors."""
