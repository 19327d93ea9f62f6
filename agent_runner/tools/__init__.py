"""What an agent can do, one module a family."""
