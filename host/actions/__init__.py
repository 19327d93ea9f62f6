"""System actions: what an agent may ask the host to do."""
