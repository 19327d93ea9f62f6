"""The trusted side: one asyncio process that routes, orchestrates and delivers."""

__version__ = "0.1.0"
"""The distribution's version (pyproject.toml reads it here): a command that shows it need not search for metadata."""
