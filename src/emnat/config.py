"""Every setting of a run, validated: TOML in, resolved TOML out.

A default stands here and nowhere else. Unknown keys are refused, with the nearest known one named.
"""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import tomli_w
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from emnat.errors import UserError

Positive = Annotated[int, Field(gt=0, le=1 << 40)]
MOST_BEAMS = 1_000
Beams = Annotated[int, Field(gt=0, le=MOST_BEAMS)]
# What a model may declare itself to be: far more than any is, and little enough to be looked at without harm.
Layers = Annotated[int, Field(gt=0, le=512)]
Width = Annotated[int, Field(gt=0, le=1 << 17)]
Count = Annotated[int, Field(gt=0, le=1 << 24)]
Fraction = Annotated[float, Field(ge=0.0, lt=1.0)]
Language = Annotated[str, Field(pattern="^[a-z]{2,3}$")]  # for Moses
Rule = Literal["nar", "kl", "ratio", "posterior"]
NarDecoder = Literal["argmax", "dedup", "odd"]


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


Files = list[str] | list[list[str]]


class Data(Section):
    """Where the text is: a set is [source file, target file], or one .tsv or .jsonl file, or a list of several such.

    Files may be .gz or .xz; *.sgm, *.xml and train.tags.* are read as WMT and IWSLT mean them.
    """

    train: Files
    valid: Files | None = None
    test: Files = []
    hold_out: Annotated[int, Field(ge=0)] = 0  # every n-th clean training pair becomes a validation pair instead
    max_words: Positive = 250
    max_ratio: Annotated[float, Field(ge=1.0)] = 4.0

    @model_validator(mode="after")
    def one_validation_set(self) -> Data:
        if self.train == [] or self.valid == []:
            raise ValueError("train and valid name files: [source, target], or one .tsv or .jsonl file")
        if (self.valid is None) == (self.hold_out == 0):
            given = "neither is" if self.valid is None else "both are"
            raise ValueError(
                "give a validation set (data.valid), or take it from the training pairs (data.hold_out, 0 for none): "
                f"{given} given"
            )
        return self


class Text(Section):
    """Raw lines to ids."""

    source_language: Language = "de"
    target_language: Language = "en"
    moses: bool = False  # tokenise with sacremoses
    normalise: bool = True  # Moses normalisation of punctuation, before tokenising; the usual IWSLT14 data have none
    lowercase: bool = False
    subwords: Literal["bpe", "word"] = "bpe"
    vocabulary: Count = 10_000
    concat: bool = True  # write <concat> between true repeats, so that ODD can produce them
    max_tokens: Width = 254  # of one sentence; also the number of length classes of a student


Size = Literal["toy", "small", "base", "large"]
SIZES: dict[Size, dict[str, int]] = {  # the paper's appendix, Table "Transformer model settings"
    "toy": {"encoder_layers": 3, "decoder_layers": 3, "hidden": 256, "filter": 1024, "heads": 4},
    "small": {"encoder_layers": 5, "decoder_layers": 5, "hidden": 256, "filter": 1024, "heads": 4},
    "base": {"encoder_layers": 6, "decoder_layers": 6, "hidden": 512, "filter": 2048, "heads": 8},
    "large": {"encoder_layers": 6, "decoder_layers": 6, "hidden": 1024, "filter": 4096, "heads": 16},
}


class Training(Section):
    """One training of one model."""

    steps: Positive = 20_000
    warm_steps: Positive | None = None  # of a model that starts from its predecessor (em.warm_start); unset: as many
    tokens: Positive = 8_192  # padded tokens of the longer side in a batch
    accumulate: Positive = 1  # batches whose gradients make one step
    learning_rate: Annotated[float, Field(gt=0)] = 1e-3
    warmup: Positive = 4_000
    decay: Literal["sqrt", "linear"] = "sqrt"  # after warm-up: with the root of the step, or straight to 0 at the last
    weight_decay: Annotated[float, Field(ge=0)] = 1e-4
    clip: Annotated[float, Field(gt=0)] = 1.0
    label_smoothing: Fraction = 0.1
    validate_every: Positive = 1_000
    validate_by: Literal["bleu", "accuracy", "loss"] = "bleu"
    validation_sentences: Positive = 1_000
    patience: Annotated[int, Field(ge=0)] = 0  # validations without a new best before stopping; 0: never
    average: Positive = 5  # checkpoints averaged at the end, if validation likes that better; not after linear decay

    def from_predecessor(self) -> Training:
        """The same schedule in the steps that a model gets which starts from its predecessor's weights."""
        if self.warm_steps is None:
            return self
        share = self.warm_steps / self.steps
        scaled = {"warmup": round(self.warmup * share), "validate_every": round(self.validate_every * share)}
        return self.model_copy(update={"steps": self.warm_steps} | {key: max(1, n) for key, n in scaled.items()})


class Model(Section):
    """A Transformer: one of the paper's sizes, of which any number can be set otherwise."""

    size: Size = "small"
    encoder_layers: Layers
    decoder_layers: Layers
    hidden: Width
    filter: Width
    heads: Width
    dropout: Fraction = 0.1
    norm: Literal["pre", "post"] = "pre"
    length_loss: Annotated[float, Field(ge=0)] = 0.1  # weight of a student's length classifier
    training: Training = Training()

    @model_validator(mode="before")
    @classmethod
    def fill_in_size(cls, values: Any) -> Any:
        size = values.get("size", "small") if isinstance(values, dict) else None
        return SIZES[size] | values if isinstance(size, str) and size in SIZES else values

    @model_validator(mode="after")
    def heads_divide_hidden(self) -> Model:
        if self.hidden % self.heads:
            raise ValueError(f"hidden = {self.hidden} is not divisible by heads = {self.heads}")
        return self


class EM(Section):
    """Algorithm 1."""

    iterations: Positive = 6  # the highest t
    rule: Rule = "nar"
    posterior_weight: Annotated[float, Field(ge=0)] = 1.0  # λ of the rule `posterior`
    length_penalty: Annotated[float, Field(ge=0)] = 0.0  # as in a search; 0: plain sums, which prefer short candidates
    distill_beam: Beams = 20
    propose_beam: Beams = 5
    candidates: Literal["beam", "sample"] = "beam"  # the k best of a search, or k draws from the teacher
    bounds: bool = True  # after a drop, go back and continue with quality bounds
    free_iterations: Positive | None = None  # then continue with bounds, drop or no drop; unset: until a drop
    patience: Positive = 1  # iterations without a new best before the bounded branch (or EM) stops
    amortised: bool = True  # false: students learn from the selected targets, not from the teacher's
    warm_start: bool = False  # start each model from its predecessor
    measure: Literal["bleu", "accuracy"] = "bleu"

    @model_validator(mode="after")
    def penalty_has_a_use(self) -> EM:
        if self.length_penalty and self.rule not in ("nar", "posterior"):
            raise ValueError(f"length_penalty has no use with the rule {self.rule!r}: leave it out")
        return self

    @property
    def searches_once(self) -> bool:
        """Whether the M-step's search finds the E-step's candidates as well."""
        return self.candidates == "beam" and self.propose_beam == self.distill_beam


class Decode(Section):
    decoder: NarDecoder = "odd"
    length_candidates: Beams = 9  # where several are tried: in measures, reports and timings
    beam: Beams = 5  # of the teacher, when it translates
    length_penalty: Annotated[float, Field(ge=0)] = 0.6
    # An AR output has at most factor·source + extra tokens.
    max_length_factor: Annotated[float, Field(gt=0, le=1 << 17)] = 2.0
    max_length_extra: Annotated[int, Field(ge=0, le=1 << 17)] = 10
    tokens: Positive | None = None  # of one batch, over all beams or candidates; unset: as many as memory allows


class Evaluate(Section):
    lowercase: bool = False
    latency_sentences: Positive = 50
    latency_runs: Positive = 5


class Config(Section):
    run: str
    seed: int = 1
    device: str = "auto"
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    deterministic: bool = False  # on a GPU: the same bits in every run, for some speed (one CPU gives them anyway)
    data: Data
    text: Text = Text()
    teacher: Model = Model()  # type: ignore[call-arg]  # the size fills in what is missing
    student: Model = Model()  # type: ignore[call-arg]
    larger_student: Model | None = None  # trained once, at the end, on what the best student learned
    em: EM = EM()
    decode: Decode = Decode()
    evaluate: Evaluate = Evaluate()


# A run may be continued with these changed; anything else would mix two experiments in one directory.
MAY_CHANGE = (
    "run",
    "device",
    "em.iterations",
    "em.free_iterations",
    "em.patience",
    "decode.tokens",
    "evaluate.latency_sentences",
    "evaluate.latency_runs",
)


def load_config(path: Path, overrides: Sequence[str] = ()) -> Config:
    """Read a TOML file, apply `key=value` overrides, validate."""
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"{path}: cannot read this config file ({error.strerror}).") from None
    except (ValueError, RecursionError) as error:  # no UTF-8, no TOML, numbers too long, brackets too deep
        raise UserError(f"{path}: not valid TOML: {error}.") from None
    for override in overrides:
        _apply_override(values, override)
    return build_config(values, origin=str(path))


def build_config(values: dict[str, Any], origin: str) -> Config:
    for key, value in _flatten(values):
        if _has_no_spelling(value):
            raise UserError(f"{origin}: {key}: a string that is no text (got {value!r}).")
    try:
        return Config.model_validate(values)
    except ValidationError as error:
        raise UserError(f"{origin}: {_explain(error)}") from None


def resolved_toml(config: Config) -> str:
    return tomli_w.dumps(config.model_dump(exclude_none=True))


def differences(old: Config, new: Config, but: Sequence[str] = MAY_CHANGE) -> list[str]:
    """The settings (and sections), `but` for some, that make `new` another experiment than `old`: `key: old → new`."""
    if old.larger_student is None:  # it comes last, so it may be asked for later
        old = old.model_copy(update={"larger_student": new.larger_student})
    before, after = dict(_flatten(old.model_dump())), dict(_flatten(new.model_dump()))
    if new.larger_student is None:  # one setting that is gone, not all that were in it
        before = {key: value for key, value in before.items() if not key.startswith("larger_student.")}
        before["larger_student"] = None if old.larger_student is None else old.larger_student.size
    return [
        f"{key}: {before.get(key)!r} → {after.get(key)!r}"
        for key in sorted(before.keys() | after.keys())
        if before.get(key) != after.get(key) and not any(key == k or key.startswith(k + ".") for k in but)
    ]


def _apply_override(values: dict[str, Any], override: str) -> None:
    key, equals, text = override.partition("=")
    if not equals or not key:
        raise UserError(f"{override!r} is not an override: write key=value, for example em.iterations=4.")
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError):
        value = text  # a bare word is a string
    *sections, name = key.strip().split(".")
    if not text.strip():  # it takes out what the file says, if it says anything
        if key.strip() not in _known_keys(Config):
            raise UserError(f"{override!r}: unknown setting; did you mean {_nearest_setting(key.strip())!r}?")
        _take_out(values, sections, name)
        return
    for section in sections:
        values = values.setdefault(section, {})
        if not isinstance(values, dict):
            raise UserError(f"{override!r}: {section} is a value, not a section.")
    values[name] = value


def _take_out(values: dict[str, Any], sections: list[str], name: str) -> None:
    for section in sections:
        inner = values.get(section)
        if not isinstance(inner, dict):
            return
        values = inner
    values.pop(name, None)


def _has_no_spelling(value: Any) -> bool:
    """NUL is in no file's name, and bytes that are not UTF-8 come from the command line as lone surrogates."""
    if isinstance(value, list):
        return any(map(_has_no_spelling, value))
    return isinstance(value, str) and ("\0" in value or any("\ud800" <= letter <= "\udfff" for letter in value))


def _explain(error: ValidationError) -> str:
    """The first problem, as a sentence."""
    first = error.errors()[0]
    key = ".".join(str(part) for part in first["loc"])
    if first["type"] == "extra_forbidden":
        return f"unknown setting {key!r}; did you mean {_nearest_setting(key)!r}?"
    if first["type"] == "missing":
        return f"the setting {key!r} is missing."
    got = "" if isinstance(first["input"], dict) else f" (got {first['input']!r})"
    if key.startswith(("data.train", "data.valid", "data.test")):  # pydantic tells what each of the forms lacks
        return f"{'.'.join(key.split('.')[:2])}: give [source, target], or one .tsv or .jsonl file as a list{got}."
    return f"{key}: {first['msg'].removeprefix('Value error, ')}{got}."


def _nearest_setting(key: str) -> str:
    """By its whole name and, as much, by its last part, which is what people remember."""

    def likeness(known: str) -> float:
        pairs = (key, known), (key.rpartition(".")[2], known.rpartition(".")[2])
        return sum(difflib.SequenceMatcher(None, *pair).ratio() for pair in pairs)

    return max(_known_keys(Config), key=likeness)


def _known_keys(section: type[BaseModel], prefix: str = "") -> list[str]:
    keys = []
    for name, field in section.model_fields.items():
        keys.append(prefix + name)
        for kind in (field.annotation, *get_args(field.annotation)):
            if isinstance(kind, type) and issubclass(kind, BaseModel):
                keys += _known_keys(kind, prefix + name + ".")
    return keys


def _flatten(values: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, dict):
            yield from _flatten(value, prefix + key + ".")
        else:
            yield prefix + key, value
