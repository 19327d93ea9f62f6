"""What our suite adds to pytest: the ledger, the engine, the guard of the event loop, what was left behind."""
