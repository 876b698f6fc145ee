"""The run directory: one folder per artifact, whole or absent.

An artifact is built in `NAME.partial` and renamed to `NAME` when every file is on disk and its manifest (what made
it, from which parents, with which checksums) is written. A partial folder stays when a process dies, so that the
next one can go on from the checkpoints in it. Nothing here knows what an artifact contains.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import shutil
import time
import tomllib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from emnat._version import __version__
from emnat.config import Config, build_config, differences, resolved_toml
from emnat.errors import UserError

FORMAT = 1  # of run directories and model directories; another number is refused, never misread
MANIFEST = "manifest.json"
SCRATCH = "scratch"


@dataclass(frozen=True)
class Run:
    """A run directory and the config it belongs to."""

    directory: Path
    config: Config

    def artifact(self, name: str) -> Path:
        return self.directory / name

    def build(self, name: str, parents: Sequence[str], make: Callable[[Path], dict[str, Any] | None]) -> Path:
        """The finished folder of artifact `name`; `make` fills it unless an earlier process did, from these parents.

        What `make` returns is kept in the manifest, under `facts`. What it keeps in `scratch(folder)` to continue
        from after an interruption is removed once the artifact is whole.
        """
        final = self.artifact(name)
        partial = final.with_name(final.name + ".partial")
        with explained_disk_errors(final):
            if final.exists() and read_manifest(final)["parents"] != list(parents):
                shutil.rmtree(final)  # made from others: a longer run has chosen another student, say
            if not final.exists():
                _continue_or_start(partial, parents)
                started = time.monotonic()
                facts = make(partial) or {}
                _write_manifest(partial, name, parents, self.config.seed, facts, time.monotonic() - started)
                _sync_folder(partial)
                partial.rename(final)
                _sync_folder(final.parent)
            shutil.rmtree(final / SCRATCH, ignore_errors=True)
            check_artifact(final)
        return final


def scratch(artifact: Path) -> Path:
    """Where an artifact under way keeps what it can be continued from."""
    folder = artifact / SCRATCH
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def open_run(config: Config) -> Run:
    """Create the run directory, or continue the one that is there if it has the same config."""
    directory = Path(config.run)
    written = directory / "config.toml"
    if directory.exists() and not directory.is_dir():
        raise UserError(f"{directory}: a file, not a directory: choose another run directory with run=...")
    if written.exists():
        changed = differences(_read_run_config(written), config)
        if changed:
            raise UserError(
                f"{directory}: this run was started with other settings ({'; '.join(changed)}): "
                "choose another run directory with run=..., or restore the settings."
            )
    elif directory.exists() and any(directory.iterdir()):
        raise UserError(f"{directory}: not empty and not a run directory: choose another with run=...")
    with explained_disk_errors(directory):
        directory.mkdir(parents=True, exist_ok=True)
        write_atomically(written, resolved_toml(config).encode())
    return Run(directory, config)


def find_run(directory: Path) -> Run:
    """A run that exists, for the commands that only read it."""
    written = directory / "config.toml"
    if not written.exists():
        raise UserError(f"{directory}: not a run directory (it has no config.toml): make one with 'emnat train'.")
    return Run(directory, _read_run_config(written))


@contextlib.contextmanager
def locked(run: Run) -> Iterator[None]:
    """One process at a time may build in a run directory; the lock goes with the process, however it ends."""
    with (run.directory / ".lock").open("w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise UserError(f"{run.directory}: another process is working in this run directory.") from None
        yield


def read_facts(artifact: Path) -> dict[str, Any]:
    facts: dict[str, Any] = read_manifest(artifact)["facts"]
    return facts


def read_manifest(artifact: Path) -> dict[str, Any]:
    path = artifact / MANIFEST
    try:
        manifest: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        raise UserError(f"{path}: missing or damaged: delete {artifact} and run the command again.") from None
    if manifest.get("format") != FORMAT:
        raise UserError(f"{path}: format {manifest.get('format')}, this version reads format {FORMAT}.")
    return manifest


def check_artifact(artifact: Path) -> None:
    """Every file named in the manifest is there, whole and unchanged (or the artifact was emptied on purpose)."""
    manifest = read_manifest(artifact)
    files = {} if manifest.get("emptied") else manifest["files"]
    for name, facts in files.items():
        path = artifact / name
        size = path.stat().st_size if path.is_file() else None
        if size is None:
            problem = "missing"
        elif size != facts["bytes"]:
            problem = f"{size} bytes instead of {facts['bytes']}"
        elif _checksum(path) != facts["sha256"]:
            problem = "damaged (its checksum is wrong)"
        else:
            continue
        raise UserError(f"{path}: {problem}: delete {artifact} and run 'emnat train' again to rebuild it.")


def empty_artifact(artifact: Path) -> int:
    """Delete the files of an artifact and keep its manifest, which goes on to say that it was made; bytes freed."""
    manifest = read_manifest(artifact)
    if manifest.get("emptied"):
        return 0
    write_atomically(artifact / MANIFEST, _as_json(manifest | {"emptied": True}))
    for name in manifest["files"]:
        (artifact / name).unlink(missing_ok=True)
    return int(sum(facts["bytes"] for facts in manifest["files"].values()))


def write_atomically(path: Path, content: bytes) -> None:
    """`path` holds either what it held before or all of `content`."""
    temporary = path.with_name(path.name + ".tmp")
    with temporary.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


@contextlib.contextmanager
def explained_disk_errors(place: Path) -> Iterator[None]:
    """Turn 'no space', 'not permitted' and their like into a sentence."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise UserError(f"{place}: the disk is full; make space and run the same command again.") from error
        if error.errno in (errno.EACCES, errno.EROFS, errno.EPERM, errno.ENOTDIR):
            raise UserError(f"{place}: cannot write here ({error.strerror}).") from error
        raise


def clear_folder(folder: Path) -> None:
    """Empty a partial artifact that cannot be continued from the middle."""
    for path in folder.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()


def _continue_or_start(partial: Path, parents: Sequence[str]) -> None:
    """A partial folder is gone on with only if it was begun from the same parents."""
    begun_from = scratch(partial) / "parents.json"
    wanted = json.dumps(list(parents)).encode()
    if not begun_from.exists() or begun_from.read_bytes() != wanted:
        clear_folder(partial)
        write_atomically(scratch(partial) / "parents.json", wanted)


def _read_run_config(path: Path) -> Config:
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: damaged ({error}): restore it, or choose another run directory.") from None
    return build_config(values, origin=str(path))


def _write_manifest(
    folder: Path, name: str, parents: Sequence[str], seed: int, facts: dict[str, Any], seconds: float
) -> None:
    files = {
        str(path.relative_to(folder)): {"bytes": path.stat().st_size, "sha256": _checksum(path)}
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != MANIFEST and SCRATCH not in path.relative_to(folder).parts
    }
    manifest = {
        "format": FORMAT,
        "artifact": name,
        "parents": list(parents),
        "seed": seed,
        "emnat": __version__,
        "seconds": round(seconds, 3),
        "facts": facts,
        "files": files,
    }
    write_atomically(folder / MANIFEST, _as_json(manifest))


def _as_json(manifest: dict[str, Any]) -> bytes:
    return json.dumps(manifest, indent=1, ensure_ascii=False).encode()


def _checksum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
