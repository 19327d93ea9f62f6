"""The contract between the host and the agent runner, and nothing else.

Both sides import this package and neither imports the other. It holds the schema of the two files of a mailbox, the
values that travel in them, the one clock format, the bell and the limits; it depends on the standard library alone.
"""
