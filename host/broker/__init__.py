"""The only door from a sandbox to the outside."""
