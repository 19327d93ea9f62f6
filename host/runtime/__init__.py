"""How a session's sandbox is started, found again and stopped."""
