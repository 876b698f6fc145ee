"""What lengths cost a student, and who may choose among several: itself, or the first teacher (the referee).

    python benchmarks/lengths.py runs/europarl-300k free-4                          # the validation set
    python benchmarks/lengths.py runs/europarl-300k free-4 --set test --candidates 9

Prints JSON, a line for every way of decoding: BLEU of one pass with the likeliest length and with the lengths that the
student's own teacher writes (which no user has: it shows what lengths cost), then of several lengths at once, and
whether each is better than ODD in one pass (paired bootstrap).
"""

from __future__ import annotations

import argparse
import json
from functools import partial
from pathlib import Path

from emnat.data import load_evaluation_set
from emnat.evaluation.scores import length_ratio, tokenised_bleu
from emnat.evaluation.significance import compare_outputs
from emnat.steps import Trained, load
from emnat.workspace import find_run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("stage")
    parser.add_argument("--set", choices=["valid", "test"], default="valid")
    parser.add_argument("--candidates", type=int, nargs="+", default=[3, 5, 9])
    options = parser.parse_args()
    run = find_run(options.run)
    lowercase = run.config.evaluate.lowercase
    asked = load_evaluation_set(run.artifact("data"), options.set)
    teacher = load(run, Trained(f"{options.stage}/teacher"))
    student = load(run, Trained(f"{options.stage}/student"), Trained("free-1/teacher"))
    written = teacher.translate_ids(asked.source_ids)
    one_pass = partial(student.translate_ids, asked.source_ids)
    given = {"exact_lengths": [max(1, len(ids)) for ids in written]}
    ways = {"odd": partial(one_pass, "odd"), "argmax": partial(one_pass, "argmax"), "teacher": lambda: written}
    ways |= {f"{way}, its teacher's lengths": partial(one_pass, way, **given) for way in ("argmax", "odd")}
    for count in options.candidates:
        for who, rescore in (("student", False), ("referee", True)):
            name = f"odd, {count} lengths, the {who} chooses"
            ways[name] = partial(one_pass, "odd", length_candidates=count, rescore=rescore)
    lines: dict[str, list[str]] = {}
    for name, decode in ways.items():
        lines[name] = [student.pipeline.decode_target(ids) for ids in decode()]
        row = {"stage": options.stage, "set": options.set, "way": name}
        row["bleu"] = tokenised_bleu(lines[name], asked.processed_references, lowercase)
        row["length_ratio"] = length_ratio(lines[name], asked.processed_references)
        if name != "odd":
            row["p_against_odd"] = compare_outputs(lines["odd"], lines[name], asked.processed_references, lowercase).p
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
