"""The whole host as a process of its own, talked to through its control socket."""
