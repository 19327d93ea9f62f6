"""`python -m host`."""

from host.cli.main import main

main()
