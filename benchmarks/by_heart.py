"""How much a student of a run knows by heart: the same questions about training sources and about unseen ones.

    python benchmarks/by_heart.py runs/europarl-300k free-3
    python benchmarks/by_heart.py runs/demo free-1 --sources 50     # a quick look

Asked are random training sources and the first of the validation set: NCM of what the teacher writes for them, BLEU
of the student (argmax) against that, with lengths of its own and with the teacher's, and, as the E-step does, which of
the teacher's k best the student likes most: how often another than the first, and -log p per token of the first and of
the likeliest, by the student (NCM) and by the first teacher (quality: the lower, the better). Prints JSON.
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
from emnat.steps import Floats, Trained, load
from emnat.workspace import find_run


def choice(
    student: Translator, teacher: Translator, referee: Translator, sources: list[Ints], beams: int
) -> dict[str, float]:
    """What the student would choose of the teacher's k best, and what that would change."""
    engine = teacher.engine
    rows_of: dict[str, list[Floats]] = {"first": [], "chosen": []}
    others = 0
    for batch in engine.plan(np.array([len(ids) for ids in sources]), beams):
        for rows, found in halved_until_it_fits(batch, partial(engine.search, sources, beams=beams)):
            given = tuple(part.to(student.device) for part in collate_sources(sources, rows))
            scores_2BK = log_probs_of_candidates([student, referee], given, found.tokens_MKT, found.lengths_MK)
            scores_2BK[0][~found.scores_MK.isfinite().cpu().numpy()] = -np.inf
            best_B = scores_2BK[0].argmax(1)
            others += int((best_B != 0).sum())
            facts_3BK = np.concatenate([-scores_2BK, found.lengths_MK.cpu().numpy()[None]])
            rows_of["first"].append(facts_3BK[:, :, 0])
            rows_of["chosen"].append(np.take_along_axis(facts_3BK, best_B[None, :, None], 2)[..., 0])
    result: dict[str, float] = {"candidates": beams, "likes_another": others / len(sources)}
    for name, parts in rows_of.items():
        by_student, by_referee, tokens = np.concatenate(parts, 1).sum(1).tolist()
        result |= {f"ncm_{name}": by_student / tokens, f"referee_{name}": by_referee / tokens}
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("stage")
    parser.add_argument("--sources", type=int, default=1_000)
    parser.add_argument("--candidates", type=int, nargs="+", default=[5])
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    run = find_run(options.run)
    models = (f"{options.stage}/student", f"{options.stage}/teacher", "free-1/teacher")
    student, teacher, referee = (load(run, Trained(model)) for model in models)
    data = run.artifact("data")
    learned, unseen = Sequences(data, "train.source"), load_evaluation_set(data, "valid").source_ids
    drawn = np.random.default_rng(options.seed).choice(len(learned), options.sources, replace=False)
    asked = {"training": [learned[int(i)] for i in drawn], "unseen": list(unseen)[: options.sources]}
    for name, sources in asked.items():
        written = teacher.translate_ids(sources, beam=run.config.em.distill_beam)
        lengths = [len(ids) for ids in written]
        references = [student.pipeline.decode_target(ids) for ids in written]
        row: dict[str, object] = {"stage": options.stage, "sources": name, "count": len(sources)}
        row["ncm"] = ncm_of_outputs(student, sources, written, "NCM")
        for how, exact in (("bleu", None), ("bleu_with_the_teachers_lengths", lengths)):
            outputs = student.translate_ids(sources, "argmax", exact_lengths=exact)
            lines = [student.pipeline.decode_target(ids) for ids in outputs]
            row[how] = BLEU(tokenize="none", force=True).corpus_score(lines, [references]).score
        row["choices"] = [choice(student, teacher, referee, sources, beams) for beams in options.candidates]
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
