"""Code such as the host must not have, for the guard to find."""
