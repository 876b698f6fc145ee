"""What a user would pick instead, of the same sizes, with random weights: Hugging Face MarianMT and CTranslate2."""

from __future__ import annotations

import tempfile
from functools import partial
from pathlib import Path

import ctranslate2
import torch
from transformers import MarianConfig, MarianMTModel

from emnat.bench.ours import Task
from emnat.bench.timing import Contender, Function
from emnat.export.ctranslate import BEGIN, END, UNKNOWN, save_for_ctranslate2
from emnat.models import Teacher
from emnat.text.subwords import BOS, EOS, PAD

BEAMS = {"greedy": 1, "beam 5": 5}


def peers(task: Task) -> list[Contender]:
    """AR decoders of the same number of tokens, beam by beam."""
    hugging_face = [
        Contender(f"AR {name}", "Hugging Face MarianMT", "float32", partial(_hugging_face, task, beams))
        for name, beams in BEAMS.items()
    ]
    layers: dict[str, tuple[int, ...]] = {"AR": (), "AR 12+1": (12, 1)}
    return hugging_face + [
        Contender(f"{kind} {name}", "CTranslate2", precision, partial(_ctranslate2, task, sizes, precision, beams))
        for kind, sizes in layers.items()
        for precision in ("float32", "int8")
        for name, beams in BEAMS.items()
    ]


def _hugging_face(task: Task, beams: int, threads: int) -> Function:
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

    return translate


def _ctranslate2(task: Task, layers: tuple[int, ...], precision: str, beams: int, threads: int) -> Function:
    """Our own teacher, converted. A batch is spread over single-threaded workers: faster than one with threads."""
    with tempfile.TemporaryDirectory() as folder:
        torch.manual_seed(0)
        teacher = Teacher(task.settings(*layers), task.vocabulary, task.tokens * 2)
        symbols = ["<pad>", BEGIN, END, UNKNOWN, *(f"t{i}" for i in range(4, task.vocabulary))]
        save_for_ctranslate2(teacher, symbols, Path(folder))
        workers = 1 if task.batch == 1 else threads
        translator = ctranslate2.Translator(
            folder, compute_type=precision, inter_threads=workers, intra_threads=threads // workers
        )
    return partial(
        translator.translate_batch,
        [[f"t{i}" for i in ids] for ids in task.sources()],
        beam_size=beams,
        max_batch_size=-(-task.batch // workers),
        min_decoding_length=task.tokens,
        max_decoding_length=task.tokens,
    )
