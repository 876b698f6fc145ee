"""How much a student of a run knows by heart: the same questions about training sources and about unseen ones.

    python benchmarks/by_heart.py runs/europarl-300k free-3
    python benchmarks/by_heart.py runs/demo free-1 --sources 50     # a quick look

Asked are random training sources and the first of the validation set: NCM of what the teacher writes for them, BLEU
of the student (argmax) against that, with lengths of its own and with the teacher's, and how often the student likes
another of the teacher's five best more than the first, which is what the E-step asks. Prints JSON.
"""

from __future__ import annotations

import argparse
import json
from functools import partial
from pathlib import Path

import numpy as np
from sacrebleu.metrics.bleu import BLEU

from emnat.data import collate_sources, load_evaluation_set
from emnat.data.store import Ints, Sequences
from emnat.decoding import Translator
from emnat.decoding.engine import halved_until_it_fits
from emnat.evaluation import log_probs_of_candidates, ncm_of_outputs
from emnat.steps import Trained, load
from emnat.workspace import find_run


def likes_another(student: Translator, teacher: Translator, sources: list[Ints]) -> float:
    """The share of sources of whose five best outputs the student finds another than the first likeliest."""
    engine, others = teacher.engine, 0
    for batch in engine.plan(np.array([len(ids) for ids in sources]), 5):
        for rows, found in halved_until_it_fits(batch, partial(engine.search, sources, beams=5)):
            ids, ends = (part.to(student.device) for part in collate_sources(sources, rows))
            scores_BK = log_probs_of_candidates([student], (ids, ends), found.tokens_MKT, found.lengths_MK)[0]
            scores_BK[~found.scores_MK.isfinite().cpu().numpy()] = -np.inf
            others += int((scores_BK.argmax(1) != 0).sum())
    return others / len(sources)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("stage")
    parser.add_argument("--sources", type=int, default=1_000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    run = find_run(options.run)
    student, teacher = (load(run, Trained(f"{options.stage}/{kind}")) for kind in ("student", "teacher"))
    data, beams = run.artifact("data"), run.config.em.distill_beam
    learned, unseen = Sequences(data, "train.source"), load_evaluation_set(data, "valid").source_ids
    drawn = np.random.default_rng(options.seed).choice(len(learned), options.sources, replace=False)
    asked = {"training": [learned[int(i)] for i in drawn], "unseen": list(unseen)[: options.sources]}
    for name, sources in asked.items():
        written = teacher.translate_ids(sources, beam=beams)
        lengths = [len(ids) for ids in written]
        references = [student.pipeline.decode_target(ids) for ids in written]
        row: dict[str, object] = {"stage": options.stage, "sources": name, "count": len(sources)}
        row["ncm"] = ncm_of_outputs(student, sources, written, "NCM")
        for how, exact in (("bleu", None), ("bleu_with_the_teachers_lengths", lengths)):
            outputs = student.translate_ids(sources, "argmax", exact_lengths=exact)
            lines = [student.pipeline.decode_target(ids) for ids in outputs]
            row[how] = BLEU(tokenize="none", force=True).corpus_score(lines, [references]).score
        row["likes_another"] = likes_another(student, teacher, sources)
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
