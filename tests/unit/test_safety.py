"""No pickle is loaded anywhere in the sources."""

from __future__ import annotations

import ast
from pathlib import Path

import emnat

SOURCES = sorted(Path(emnat.__file__).parent.rglob("*.py"))
FORBIDDEN_MODULES = {"pickle", "dill", "joblib", "shelve", "marshal", "cloudpickle"}


def test_no_pickle() -> None:
    assert len(SOURCES) > 40
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                assert not {alias.name.split(".")[0] for alias in node.names} & FORBIDDEN_MODULES, path
            if isinstance(node, ast.ImportFrom):
                assert (node.module or "").split(".")[0] not in FORBIDDEN_MODULES, path
            if isinstance(node, ast.Call):
                called = ast.unparse(node.func)
                assert called not in {"torch.load", "torch.save", "torch.hub.load", "eval", "exec"}, path
                if called in {"np.load", "numpy.load"}:
                    assert "allow_pickle=False" in ast.unparse(node), path
