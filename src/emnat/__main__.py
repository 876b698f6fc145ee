"""The `emnat` command, also as `python -m emnat`. Signals have an answer while PyTorch, which takes seconds, comes."""

from __future__ import annotations

from emnat import interrupt


def main() -> None:
    interrupt.leave_at_once()
    from emnat.cli import main as run_command  # noqa: PLC0415  # this takes the seconds

    run_command()


if __name__ == "__main__":  # not in the processes that `bench` starts
    main()
