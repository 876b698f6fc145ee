"""The tables of README.md, and the shares at the top of docs/results, say what the records say."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import mean
from typing import Any

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "docs/results"
README = (ROOT / "README.md").read_text(encoding="utf-8")


def record(name: str) -> Any:
    return json.loads((RESULTS / name).read_text(encoding="utf-8"))


def table(text: str, heading: str) -> dict[str, list[str]]:
    """The lines of the table whose first line has this heading, by their first cell."""
    lines = text.splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("|") and heading in line)
    found = {}
    for line in lines[start + 2 :]:
        if not line.startswith("|"):
            break
        name, *cells = (cell.strip() for cell in line.strip("|").split("|"))
        found[name] = cells
    return found


def line_with(text: str, start: str) -> str:
    return next(line for line in text.splitlines() if line.startswith(start))


def test_the_demo() -> None:
    columns = []
    for seed in (1, 2, 3):
        run = record(f"demo/seed-{seed}.json")
        baseline, final = run["iterations"][0], run["final"]["bleu"]
        scores = [baseline["teacher_bleu"], baseline["bleu"]["argmax"]]
        scores += [final[name] for name in ("argmax", "dedup", "odd", "odd_9")]
        free = [f"{iteration['ncm']:.3f}" for iteration in run["iterations"] if iteration["branch"] == "free"]
        columns.append([*(f"{score:.2f}" for score in scores), " → ".join(free)])
    assert list(table(README, "seed 1").values()) == [list(row) for row in zip(*columns, strict=True)]


def one_pass_and_rescored(bleu: dict[str, float], ms: dict[str, float], decoder: str) -> list[str]:
    values = bleu[decoder], ms[decoder], bleu[f"{decoder}_9"], ms[f"{decoder}_9"]
    return [f"{value:.2f}" for value in values]


def rows_of_readme(run: dict[str, Any]) -> dict[str, list[str]]:
    baseline, best, ms = run["iterations"][0], run["final"], run["latency_ms"]
    return {
        "AR teacher, beam 5": [f"{baseline['teacher_bleu']:.2f}", f"{ms['beam_5']:.2f}", "", ""],
        "NAT baseline, distilled": one_pass_and_rescored(baseline["bleu"], ms, "argmax"),
        "+ EM": one_pass_and_rescored(best["bleu"], ms, "argmax"),
        "+ EM + post-de-duplication": one_pass_and_rescored(best["bleu"], ms, "dedup"),
        "+ EM + ODD": one_pass_and_rescored(best["bleu"], ms, "odd"),
    }


def test_europarl() -> None:
    run = record("europarl-300k/report.json")
    larger, ms_of_larger = run["larger"], run["latency_ms_of_larger"]
    rows = rows_of_readme(run)
    rows["+ EM + ODD, larger student (`base`)"] = one_pass_and_rescored(larger["bleu"], ms_of_larger, "odd")
    assert table(README, "9 lengths rescored") == rows
    assert f"teacher took {ms_of_larger['beam_5']:.2f}" in README


def test_europarl_of_882069_pairs() -> None:
    run = record("europarl-882k/report.json")
    assert table(README, "882,069 pairs") == rows_of_readme(run)
    em, odd, rescored = (f"{run['gap_closed'][name]:.0%}" for name in ("+ EM", "+ EM + ODD", "+ EM + ODD, rescored"))
    assert f"EM closes {em} of the gap between baseline and teacher, with ODD {odd}, rescored {rescored}" in README
    ms = run["latency_ms"]
    assert f"which is {ms['beam_5'] / ms['odd_9']:.1f} times as fast" in README
    teacher = run["iterations"][0]["teacher_bleu"]
    alone, helped = (run["final"]["bleu"][name] for name in ("odd", "odd_9"))
    assert f"within {teacher - helped:.1f} BLEU of the teacher and is {ms['beam_5'] / ms['odd_9']:.1f} times" in README
    assert f"within {teacher - alone:.1f} and {ms['beam_5'] / ms['odd']:.1f} times as fast" in README
    comparisons = record("europarl-882k/compared.json")["comparisons"]
    scores = {each["better"]: each["after"] for each in comparisons} | {
        each["than"]: each["before"] for each in comparisons
    }
    first, last = (f"{scores[f't = {t}: teacher, greedy']:.2f}" for t in (1, 3))
    assert f"searched greedily, the first has {first}, that of t = 3 {last} ({ms['greedy']:.2f} ms)" in README
    assert f"hardly less than with beam 5 ({run['final']['teacher_bleu']:.2f})" in README


def test_the_first_iteration_was_repeated_exactly() -> None:
    """What docs/results/europarl-882k says."""
    once, again = (record(f"europarl-882k/{name}.json")["iterations"][0] for name in ("first-iteration", "report"))
    for figure in ("bleu", "teacher_bleu", "ncm", "ncm_unseen", "validation"):
        assert once[figure] == again[figure]


def test_multi30k() -> None:
    seeds = record("multi30k/seeds.json")
    first = [seed["report"]["iterations"][0] for seed in seeds]
    stated = line_with(README, "Multi30k")
    for words, values in {
        "teacher": [iteration["teacher_bleu"] for iteration in first],
        "NAT baseline": [iteration["bleu"]["argmax"] for iteration in first],
        "+ EM": [seed["bleu"]["argmax"] for seed in seeds],
        "+ ODD": [seed["bleu"]["odd"] for seed in seeds],
        "post-de-duplication": [seed["bleu"]["dedup"] for seed in seeds],
        "nine lengths rescored": [seed["bleu"]["odd_9"] for seed in seeds],
    }.items():
        assert f"{words} {mean(values):.2f}" in stated
    ms = record("multi30k/report.json")["latency_ms"]
    assert f"at {ms['beam_5']:.1f}, {ms['odd']:.2f} and {ms['odd_9']:.2f} ms" in stated


def with_digits_of(stated: str, value: float) -> str:
    return f"{value:.{len(stated.partition('.')[2])}f}"


def test_speed() -> None:
    names = {"AR, beam 5 (CUDA graphs)": "AR beam 5", "AR with 12+1 layers, greedy": "AR 12+1 greedy"}
    names |= {"NAT + ODD": "NAT + ODD", "NAT + ODD, 9 lengths rescored by the teacher": "NAT + ODD, 9 lengths rescored"}
    compare_times("one H200, bf16", names, record("bench-h200-inference.json"))


def test_speed_on_a_cpu() -> None:
    names = {
        "CTranslate2 int8, beam 5": "AR beam 5",
        "CTranslate2 int8, 12+1 layers, greedy": "AR 12+1 greedy",
        "NAT + ODD, int8, ONNX Runtime": "NAT + ODD",
    }
    entries = [entry for entry in record("bench-cpu-one-pass.json") if entry["precision"] == "int8"]
    compare_times("two CPU cores, 25 tokens", names, entries)


def compare_times(heading: str, names: dict[str, str], entries: list[dict[str, Any]]) -> None:
    """A table of milliseconds at batch 1, and how many times as fast as AR with beam 5."""
    timed = {entry["name"]: entry["ms_median"] for entry in entries if entry["batch"] == 1}
    stated = table(README, heading)
    assert stated.keys() == names.keys()
    for name, (ms, ratio) in stated.items():
        measured, times = timed[names[name]], ratio.removesuffix("×")
        assert ms == with_digits_of(ms, measured), name
        assert times == with_digits_of(times, timed["AR beam 5"] / measured), name


def test_shares_of_the_gap() -> None:
    """Those of three runs on Europarl, against the paper's."""
    stated = table((RESULTS / "README.md").read_text(encoding="utf-8"), "WMT14 De-En")
    for column, name in ((3, "300k/report"), (4, "300k/from-scratch"), (6, "882k/report")):
        run = record(f"europarl-{name}.json")
        first, best = run["iterations"][0], run["final"] or run["iterations"][-1]
        start, end = first["bleu"]["argmax"], first["teacher_bleu"]
        scores = [first["bleu"]["argmax_9"], *(best["bleu"][decoder] for decoder in ("argmax", "odd", "odd_9"))]
        if run.get("larger"):
            scores.append(run["larger"]["bleu"]["odd_9"])
        shares = [f"{(score - start) / (end - start):.0%}" for score in scores]
        assert [cells[column] for cells in stated.values() if cells[column]] == shares


def test_synthetic_accuracy() -> None:
    stated = table((RESULTS / "README.md").read_text(encoding="utf-8"), "AR, the paper")
    assert set(stated) == {"I", "II"}
    for experiment, cells in stated.items():
        found = record(f"synthetic/{experiment}.json")["accuracy"]
        assert cells[:2] == [f"{100 * found[model]:.1f}%" for model in ("AR", "NAR")]
