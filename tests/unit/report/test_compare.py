"""Runs side by side."""

from __future__ import annotations

from rich.console import Console

from emnat.report.compare import Compared, print_comparison


def test_another_test_set_is_told_and_not_averaged(capsys) -> None:  # type: ignore[no-untyped-def]
    bleu = {"argmax": 20.0, "dedup": 25.0, "odd": 30.0}
    for same in (True, False):
        lines = [Compared(name, [], "t = 1", 28.0, 1.0, None, 40.0, bleu, {}, same or name == "a") for name in "ab"]
        print_comparison(lines, Console(width=100))
        shown = capsys.readouterr().out
        assert ("mean" in shown) == same
        assert ("b: another test set" in shown) == (not same)


def test_runs_that_try_another_number_of_lengths(capsys) -> None:  # type: ignore[no-untyped-def]
    lines = []
    for candidates, odd, rescored in ((9, 30.25, 35.5), (5, 31.0, 34.75), (1, 32.5, None)):
        bleu = {"argmax": 20.0, "dedup": 25.0, "odd": odd}
        bleu |= {f"odd_{candidates}": rescored} if rescored else {}
        changed = [f"decode.length_candidates: 9 → {candidates}"] * (candidates != 9)
        lines.append(Compared(f"runs/{candidates}", changed, "t = 2", 28.0, 1.0, None, 40.0, bleu, {}))
    print_comparison(lines, Console(width=100))
    shown = {row.split()[0]: row.split() for row in capsys.readouterr().out.splitlines() if row.strip()}
    scores = [shown[name][5:-2] for name in "951"]  # behind run, t and validation, before AR and NCM
    assert scores == [["30.25", "35.50"], ["31.00", "34.75"], ["32.50"]]
    assert "mean" not in shown
