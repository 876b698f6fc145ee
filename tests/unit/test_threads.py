"""What `import emnat` says about threads, to the process that it is in."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

ASK = "import emnat, os, sys; assert 'torch' not in sys.modules; print(os.environ['GOMP_SPINCOUNT'])"


@pytest.mark.parametrize(("set_before", "wanted"), [(None, "1000"), ("7", "7")])
def test_threads_do_not_wait_at_the_cost_of_others(set_before: str | None, wanted: str) -> None:
    """Said before PyTorch is there, which reads it once; not where the user has said otherwise."""
    environment = {name: value for name, value in os.environ.items() if name != "GOMP_SPINCOUNT"}
    environment |= {} if set_before is None else {"GOMP_SPINCOUNT": set_before}
    done = subprocess.run([sys.executable, "-c", ASK], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == wanted
