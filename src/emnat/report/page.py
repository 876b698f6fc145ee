"""One HTML page with everything about a run; no other file, no script, no network."""

from __future__ import annotations

from html import escape
from pathlib import Path

from emnat._version import __version__
from emnat.artifacts import read_facts, write_atomically
from emnat.report.claims import Claim, gap_closed
from emnat.report.collect import RunResults, beam_among, label
from emnat.report.tables import main_table, number, timing_note

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #222; max-width: 64rem; margin: 2rem auto; padding: 0 1.5rem; }
h1 { font-size: 1.6rem; margin-bottom: 0; } h2 { font-size: 1.15rem; margin-top: 2.2rem; }
.note { color: #666; font-size: 0.88rem; overflow-wrap: anywhere; }
table { border-collapse: collapse; width: 100%; margin: 0.6rem 0 1.4rem; }
th, td { text-align: left; padding: 0.28rem 0.7rem; border-bottom: 1px solid #e3e3e3; vertical-align: top; }
th { font-weight: 600; border-bottom: 2px solid #bbb; } td.number, th.number { text-align: right; white-space: nowrap; }
td.name { white-space: nowrap; width: 15rem; color: #555; } 
tr.source td { color: #1f6f8b; } tr.truth td { color: #8b5a1f; }
mark { background: #ffd9d1; padding: 0 0.1rem; border-radius: 2px; }
svg { width: 100%; height: auto; }
@media (max-width: 48rem) { table { display: block; overflow-x: auto; } td.name { width: auto; } }
"""
_EXAMPLES = 6
_BOUNDED = " Bounded: only targets that the first teacher finds no worse than those of the iteration it went back to."
_DECODERS = {"argmax": "argmax", "dedup": "post-de-duplication", "odd": "ODD"}


def write_page(results: RunResults, made: list[Claim], path: Path) -> None:
    from emnat.report.plots import convergence_svg  # noqa: PLC0415  # matplotlib wants a home, other commands do not

    config = results.run.config
    parts = [
        f"<h1>{escape(results.run.directory.resolve().name)}</h1>",
        f"<p class=note>EM training of a one-pass translation model · seed {config.seed} · rule {config.em.rule} · "
        f"emnat {__version__}{'' if results.final else ' · <b>not finished</b>'}<br>"
        f"{escape(_what_was_trained(results))}</p>",
        f"<h2>Results on the {results.set_in_words}</h2>",
        f"<p class=note>{results.caveat}</p>" if results.caveat else "",
        _table(*main_table(results)),
        f"<p class=note>BLEU: {escape(results.signature)}. {escape(timing_note(results))}</p>",
        "<h2>Better than the step before?</h2>",
        _claims_table(results, made),
        "<p class=note>p: paired bootstrap, 1,000 samples. The gap: from the baseline in one pass to the teacher.</p>",
        "<h2>Convergence</h2>",
        convergence_svg(results),
        _convergence_table(results),
        "<p class=note>NCM: how hard the student finds what it was taught, -log p a token (of unseen sources: what its "
        f"teacher writes for them).{_BOUNDED if results.stages[-1].branch == 'bounded' else ''}</p>",
        "<h2>How the training targets change</h2>",
        "<p class=note>What the student was taught for one source, iteration by iteration.</p>",
        *(_target_table(rows) for rows in results.changing_targets(_EXAMPLES)),
        "<h2>The decoders side by side</h2>",
        f"<p class=note>Sentences of the {results.set_in_words} on which they differ, outputs as the models write them "
        "(tokenised). Marked: a word that repeats the one before it.</p>",
        *_decoder_tables(results),
    ]
    title = escape(f"emnat: {results.run.directory.resolve().name}")
    page = (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f"<title>{title}</title><style>{_STYLE}</style><body>{''.join(parts)}</body></html>\n"
    )
    write_atomically(path, page.encode())


def _what_was_trained(results: RunResults) -> str:
    config, data = results.run.config, read_facts(results.run.artifact("data"))
    models = {"teacher": config.teacher, "student": config.student, "larger student": config.larger_student}
    sizes = (
        f"{name}: {model.encoder_layers}+{model.decoder_layers} layers of {model.hidden}, "
        f"{model.training.steps:,} steps of {model.training.tokens * model.training.accumulate:,} tokens"
        for name, model in models.items()
        if model is not None
    )
    later = " (of t = 1, if later ones have fewer)" if config.em.warm_start else ""
    return f"{data['train']['kept']:,} pairs, {data['vocabulary']:,} pieces · {' · '.join(sizes)}{later}"


def _convergence_table(results: RunResults) -> str:
    lines = []
    for stage in results.stages:
        row = stage.row()
        chosen = " ← chosen" if results.final and stage.name == results.final.name else ""
        numbers = [row["bleu"]["argmax"], row["bleu"]["odd"], row["teacher_bleu"], row["teacher_greedy_bleu"]]
        modality = [number(row[name], 4) for name in ("ncm", "ncm_unseen")]
        lines.append([label(stage) + chosen, *map(number, [*numbers, row["validation"]]), *modality])
    students, teachers = ["student, argmax", "student, ODD"], ["teacher", "teacher, greedy"]
    head = ["iteration", *students, *teachers, "validation", "NCM", "NCM, unseen"]
    return _table(head, lines)


def _claims_table(results: RunResults, made: list[Claim]) -> str:
    shares = gap_closed(results)
    lines = []
    for claim in made:
        found, share = claim.found, shares.pop(claim.better, None)
        numbers = [number(found.before), number(found.after), found.shown]
        lines.append([f"{claim.better}, than {claim.than}", *numbers, "" if share is None else f"{share:.0%}"])
    return _table(["", "before", "after", "p", "of the gap closed"], lines)


def _target_table(rows: list[tuple[str, str]]) -> str:
    styles = {"source": "source", "ground truth": "truth"}
    lines = (
        f'<tr class="{styles.get(name, "")}"><td class=name>{escape(name)}</td><td>{escape(text)}</td></tr>'
        for name, text in rows
    )
    return f"<table>{''.join(lines)}</table>"


def _decoder_tables(results: RunResults) -> list[str]:
    """The paper's Table 10, for test sentences where argmax and ODD disagree."""
    final = results.final or results.stages[-1]
    sources, references = results.test_text()
    columns = [
        ("AR teacher, t = 1", results.outputs(results.baseline, beam_among(results.baseline.measures["teacher"])))
    ]
    columns += [(f"baseline, {name}", results.outputs(results.baseline, d)) for d, name in _DECODERS.items()]
    if final is not results.baseline:
        columns += [(f"t = {final.t}, {name}", results.outputs(final, d)) for d, name in _DECODERS.items()]
    rescored = f"odd_{results.run.config.decode.length_candidates}"
    if rescored in final.measures["student"]:
        columns.append((f"t = {final.t}, ODD, rescored", results.outputs(final, rescored)))
    last_argmax, last_odd = results.outputs(final, "argmax"), results.outputs(final, "odd")
    differing = [i for i in range(len(sources)) if last_argmax[i] != last_odd[i]] or list(range(len(sources)))
    tables = []
    for i in differing[:_EXAMPLES]:
        lines = [
            f"<tr class=source><td class=name>source</td><td>{escape(sources[i])}</td></tr>",
            f"<tr class=truth><td class=name>reference</td><td>{escape(references[i])}</td></tr>",
        ]
        lines += [f"<tr><td class=name>{escape(n)}</td><td>{_marked(column[i])}</td></tr>" for n, column in columns]
        tables.append(f"<table>{''.join(lines)}</table>")
    return tables


def _marked(line: str) -> str:
    words = line.split()
    return " ".join(
        f"<mark>{escape(word)}</mark>" if i and word == words[i - 1] else escape(word) for i, word in enumerate(words)
    )


def _table(head: list[str], lines: list[list[str]]) -> str:
    def cells(tag: str, line: list[str]) -> str:
        return "".join(
            f"<{tag}{' class=number' if column else ''}>{escape(cell)}</{tag}>" for column, cell in enumerate(line)
        )

    rows = [cells("th", head), *(cells("td", line) for line in lines)]
    return "<table>" + "".join(f"<tr>{row}</tr>" for row in rows) + "</table>"
