"""The platforms that people write on."""
