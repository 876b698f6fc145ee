"""What the E-step writes down about every candidate is what each model says of it when asked directly."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from emnat import steps
from emnat.artifacts import read_facts
from emnat.candidates import by_source, unpadded
from emnat.config import build_config
from emnat.data import grammar
from emnat.data.store import lengths_of
from emnat.evaluation import log_probs_of_pairs
from emnat.workspace import Run, open_run

PAIRS, BEAMS = 61, 3


def tiny_run(folder: Path, way: str, beams: int = BEAMS, steps_of_training: int = 6) -> Run:
    grammar.write_corpus(folder / "corpus", train=PAIRS, valid=5, test=1, seed=3)
    training = {"steps": steps_of_training, "tokens": 400, "validate_every": 100, "validation_sentences": 2}
    training |= {"warmup": 2, "learning_rate": 0.01, "decay": "linear"}
    model = {"encoder_layers": 1, "decoder_layers": 1, "hidden": 16, "filter": 16, "heads": 2, "training": training}
    data = {name: [str(folder / f"corpus/{name}.{side}") for side in ("de", "en")] for name in ("train", "valid")}
    values = {"run": str(folder / "run"), "device": "cpu", "data": data, "teacher": model, "student": model}
    values |= {"text": {"vocabulary": 500}, "em": {"propose_beam": beams, "distill_beam": BEAMS, "candidates": way}}
    return open_run(build_config(values, "test"))


@pytest.mark.parametrize(("way", "own_referee"), [("beam", False), ("beam", True), ("sample", False)])
def test_scores_are_those_of_the_models(tmp_path: Path, way: str, own_referee: bool) -> None:
    run = tiny_run(tmp_path, way)
    corpus = steps.prepare(run)
    referee = steps.train_teacher(run, corpus, "free-1", corpus.truth, None)
    teacher = steps.train_teacher(run, corpus, "free-2", corpus.truth, None)
    student = steps.train_student(run, corpus, "free-2", corpus.truth, None)
    teacher = referee if own_referee else teacher
    candidates = steps.propose(run, corpus, "free-2", teacher, student, corpus.truth)
    assert candidates.scores.quality is None
    scores = steps.judge(run, corpus, "free-2", candidates, corpus.truth, teacher, referee).scores
    for model, found in ((student, scores.student), (teacher, scores.teacher), (referee, scores.quality)):
        for column in range(BEAMS + 1):
            rows = range(column, PAIRS * BEAMS, BEAMS)
            lists = [corpus.truth.sequences[i] for i in range(PAIRS)]
            if column < BEAMS:
                lists = [candidates.sequences[i] for i in rows]
            wanted = log_probs_of_pairs(steps.load(run, model), corpus.sources, lists, "asked")
            exists = np.isfinite(found[:, column]) & (lengths_of(lists) > 0)
            assert exists.mean() > 0.9
            assert found[exists, column] == pytest.approx(wanted[exists], abs=2e-3)
    lengths = candidates.lengths(corpus.truth.sequences, slice(4, 9))
    assert lengths[2].tolist() == [len(candidates.sequences[6 * BEAMS + k]) for k in range(BEAMS)] + [len(lists[6])]
    columns = np.random.default_rng(BEAMS).integers(0, BEAMS + 1, PAIRS)
    ids, lengths = candidates.in_columns(corpus.truth.sequences, slice(4, PAIRS), columns[4:])
    for i, column in enumerate(columns[4:], 4):
        wanted = corpus.truth.sequences[i] if column == BEAMS else candidates.sequences[i * BEAMS + column]
        assert ids[i - 4, : lengths[i - 4]].tolist() == wanted.tolist()
    assert np.allclose(scores.teacher, scores.quality, atol=0.1) == own_referee


def test_lists_of_several_batches_in_the_order_of_their_sources(seed: int) -> None:
    torch.manual_seed(seed)
    order, batches, wanted = torch.randperm(30).numpy(), [], {}
    for rows in np.array_split(order, 4):
        tokens_BKT, lengths_BK = torch.randint(5, 99, (len(rows), BEAMS, 7)), torch.randint(0, 8, (len(rows), BEAMS))
        batches.append((rows, *unpadded(tokens_BKT, lengths_BK)))
        for row, tokens_KT, lengths_K in zip(rows.tolist(), tokens_BKT.tolist(), lengths_BK.tolist(), strict=True):
            wanted[row] = [ids[:length] for ids, length in zip(tokens_KT, lengths_K, strict=True)]
    ids, lengths = by_source(batches)
    found = [part.tolist() for part in np.split(ids, np.cumsum(lengths)[:-1])]
    assert found == [sequence for row in range(30) for sequence in wanted[row]]


@pytest.mark.parametrize("bounded", [False, True])
def test_facts_about_targets_go_by_what_they_say(tmp_path: Path, bounded: bool) -> None:
    """Where the incumbent is the teacher's best, a target that is the one is the other, in whatever column it stood."""
    run = tiny_run(tmp_path, "beam", steps_of_training=60)
    corpus = steps.prepare(run)
    teacher = steps.train_teacher(run, corpus, "free-1", corpus.truth, None)
    distilled = steps.distill(run, corpus, "free-1", teacher)
    student = steps.train_student(run, corpus, "free-1", distilled, None)
    candidates = steps.propose(run, corpus, "free-1", teacher, student, distilled)
    candidates = steps.judge(run, corpus, "free-1", candidates, distilled, teacher, teacher)
    targets = steps.select(run, corpus, "free-2", candidates, distilled, candidates if bounded else None)
    facts = read_facts(targets.folder)
    both = zip(targets.sequences, distilled.sequences, strict=True)
    same = np.mean([ours.tolist() == theirs.tolist() for ours, theirs in both])
    assert same > 0
    assert bounded or same < 1
    assert facts["kept incumbent"] == pytest.approx(same)
    assert facts["not the teacher's best"] == pytest.approx(1 - same)


def test_one_search_serves_both_steps(tmp_path: Path) -> None:
    """With one beam for M- and E-step, the distilled targets come from the candidates, and are those of a search."""
    distilled = {}
    for beams in (BEAMS, BEAMS - 1):
        run = tiny_run(tmp_path / str(beams), "beam", beams, steps_of_training=300)
        corpus = steps.prepare(run)
        teacher = steps.train_teacher(run, corpus, "free-1", corpus.truth, None)
        distilled[beams] = steps.distill(run, corpus, "free-1", teacher).sequences
        assert (run.directory / "free-1/candidates").exists() == (beams == BEAMS)
        lists = steps.search(run, corpus, "free-1", teacher)
        assert len(lists.sequences) == PAIRS * beams
    assert [ids.tolist() for ids in distilled[BEAMS]] == [ids.tolist() for ids in distilled[BEAMS - 1]]
    assert len({tuple(ids) for ids in distilled[BEAMS]}) > 10  # the teacher has learned something
