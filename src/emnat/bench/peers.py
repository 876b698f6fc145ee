"""What a user would pick instead, of the same sizes, with random weights: Hugging Face MarianMT and CTranslate2."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

import ctranslate2
import torch
from transformers import MarianConfig, MarianMTModel

from emnat.bench.ours import Task, with_threads
from emnat.bench.timing import Contender
from emnat.export.ctranslate import BEGIN, END, UNKNOWN, save_for_ctranslate2
from emnat.models import Teacher
from emnat.text.subwords import BOS, EOS, PAD

BEAMS = {"greedy": 1, "beam 5": 5}


def peers(task: Task) -> list[Contender]:
    """AR decoders of the same number of tokens, beam by beam."""
    return [
        *(_hugging_face(f"AR {name}", task, beams) for name, beams in BEAMS.items()),
        *(
            _ctranslate2(f"AR{kind} {name}", task, layers, precision, beams)
            for kind, layers in (("", (None, None)), (" 12+1", (12, 1)))
            for precision in ("float32", "int8")
            for name, beams in BEAMS.items()
        ),
    ]


def _hugging_face(name: str, task: Task, beams: int) -> Contender:
    settings = task.settings()
    torch.manual_seed(0)
    model = MarianMTModel(
        MarianConfig(
            vocab_size=task.vocabulary,
            decoder_vocab_size=task.vocabulary,
            d_model=settings.hidden,
            encoder_layers=settings.encoder_layers,
            decoder_layers=settings.decoder_layers,
            encoder_ffn_dim=settings.filter,
            decoder_ffn_dim=settings.filter,
            encoder_attention_heads=settings.heads,
            decoder_attention_heads=settings.heads,
            activation_function="relu",
            max_position_embeddings=task.tokens * 2,
            pad_token_id=PAD,
            bos_token_id=BOS,
            eos_token_id=EOS,
            decoder_start_token_id=BOS,
            forced_eos_token_id=None,
        )
    )
    model.eval()  # type: ignore[no-untyped-call]
    source_BS = torch.tensor([ids.tolist() for ids in task.sources()])

    def translate() -> object:
        with torch.inference_mode():
            return model.generate(  # type: ignore[misc]
                input_ids=source_BS,
                attention_mask=torch.ones_like(source_BS),
                num_beams=beams,
                do_sample=False,
                min_new_tokens=task.tokens,
                max_new_tokens=task.tokens,
            )

    return Contender(name, "Hugging Face MarianMT", "float32", lambda threads: with_threads(translate, threads))


def _ctranslate2(name: str, task: Task, layers: tuple[int | None, int | None], precision: str, beams: int) -> Contender:
    """Our own teacher, converted. A batch is spread over several single-threaded workers if that is faster."""
    sources = [[f"t{i}" for i in ids] for ids in task.sources()]

    def prepare(threads: int) -> Callable[[], object]:
        with tempfile.TemporaryDirectory() as folder:
            torch.manual_seed(0)
            teacher = Teacher(task.settings(*layers), task.vocabulary, task.tokens * 2)
            symbols = ["<pad>", BEGIN, END, UNKNOWN, *(f"t{i}" for i in range(4, task.vocabulary))]
            save_for_ctranslate2(teacher, symbols, Path(folder))
            workers = 1 if task.batch == 1 else threads
            translator = ctranslate2.Translator(
                folder, compute_type=precision, inter_threads=workers, intra_threads=threads // workers
            )
        at_once = -(-task.batch // workers)

        def translate() -> object:
            return translator.translate_batch(
                sources,
                beam_size=beams,
                max_batch_size=at_once,
                min_decoding_length=task.tokens,
                max_decoding_length=task.tokens,
            )

        return translate

    return Contender(name, "CTranslate2", precision, prepare)
