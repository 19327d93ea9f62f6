"""A week in the life of a host, played in seconds, with accounts of every message at its end."""
