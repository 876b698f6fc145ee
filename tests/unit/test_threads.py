"""What `import emnat` says about threads, to the process that it is in."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

ASK = "import emnat, os, sys; assert 'torch' not in sys.modules; print(os.environ.get('GOMP_SPINCOUNT'))"


@pytest.mark.parametrize(
    ("set_before", "wanted"),
    [({}, "1000"), ({"GOMP_SPINCOUNT": "7"}, "7"), ({"OMP_WAIT_POLICY": "passive"}, "None")],
)
def test_threads_do_not_wait_at_the_cost_of_others(set_before: dict[str, str], wanted: str) -> None:
    """Said before PyTorch is there, which reads it once; not where the user has said otherwise."""
    ours = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")
    environment = {name: value for name, value in os.environ.items() if name not in ours} | set_before
    done = subprocess.run([sys.executable, "-c", ASK], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == wanted
