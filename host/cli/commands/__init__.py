"""One module a command; each has `command`, and imports what is slow inside its function."""
