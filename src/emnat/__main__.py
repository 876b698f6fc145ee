"""`python -m emnat` is the `emnat` command."""

from emnat.cli import main

if __name__ == "__main__":  # not in the processes that `bench` starts
    main()
