"""`python -m emnat` is the `emnat` command."""

from emnat.cli import main

main()
