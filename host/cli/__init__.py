"""The command line. Each command is a module of its own, loaded when it is called: `--help` and `status` answer at
once."""
