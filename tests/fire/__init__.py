"""Under fire: hostile sandboxes, and machines that fail, against the whole host."""
