"""Shared by all tests: tiny models with random weights, and a seed that is printed when a test fails."""

from __future__ import annotations

import os
import random

import pytest
import torch

from emnat.config import Model
from emnat.models import NAT, Teacher

torch.set_num_threads(1)  # tiny models are fastest so, and a busy machine does not slow them down
TINY = Model(encoder_layers=1, decoder_layers=2, hidden=16, filter=32, heads=2, dropout=0.0)


@pytest.fixture
def seed() -> int:
    """Another one in every run, so that no threshold is fitted to one curve; EMNAT_TEST_SEED repeats a run."""
    chosen = int(os.environ.get("EMNAT_TEST_SEED", random.SystemRandom().randrange(10_000)))
    print(f"seed {chosen}: repeat with EMNAT_TEST_SEED={chosen}")
    return chosen


@pytest.fixture
def tiny_teacher(seed: int) -> Teacher:
    torch.manual_seed(seed)
    return Teacher(TINY, vocabulary=9, max_tokens=6).eval()


@pytest.fixture
def tiny_student(seed: int) -> NAT:
    torch.manual_seed(seed)
    return NAT(TINY, vocabulary=9, max_tokens=6).eval()
