"""The models that a turn can run on."""
