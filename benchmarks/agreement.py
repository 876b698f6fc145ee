"""How far the student of every iteration agrees with its own teacher on the test set, and what that is worth.

    python benchmarks/agreement.py runs/europarl-300k

Reads the outputs that the run has measured and prints JSON: BLEU of the teacher against the reference and against the
first teacher, of the student (each decoder) against the reference and against its teacher, and how long it writes.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from emnat.evaluation.scores import length_ratio, tokenised_bleu
from emnat.report import collect
from emnat.workspace import find_run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    results = collect(find_run(parser.parse_args().run))
    lowercase = results.run.config.evaluate.lowercase
    references = results.test_text()[1]
    beam = f"beam_{results.run.config.decode.beam}"
    decoders = ("argmax", "dedup", "odd", f"odd_{results.run.config.decode.length_candidates}")
    first_teacher = results.outputs(results.baseline, beam)

    def bleu(outputs: list[str], wanted: list[str]) -> float:
        return round(tokenised_bleu(outputs, wanted, lowercase), 2)

    stages: dict[str, Any] = {}
    for stage in results.stages:
        teacher = results.outputs(stage, beam)
        row: dict[str, Any] = {
            "teacher": {"reference": bleu(teacher, references), "first teacher": bleu(teacher, first_teacher)}
        }
        for decoder in decoders:
            student = results.outputs(stage, decoder)
            row[decoder] = {"reference": bleu(student, references), "its teacher": bleu(student, teacher)}
            row[decoder]["length over its teacher's"] = round(length_ratio(student, teacher), 4)
        stages[stage.name] = row
    print(json.dumps(stages, indent=1))


if __name__ == "__main__":
    main()
