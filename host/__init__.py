"""The trusted side: one asyncio process that routes, orchestrates and delivers."""
