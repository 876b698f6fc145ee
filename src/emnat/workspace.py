"""The run directory: one folder per artifact, and the config it belongs to.

An artifact is built in `NAME.partial` and renamed to `NAME` when it is whole (artifacts.py). A partial folder stays
when a process dies, so that the next one can go on from the checkpoints in it.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import time
import tomllib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from emnat.artifacts import (
    MANIFEST,
    SCRATCH,
    check_artifact,
    clear_folder,
    content_digest,
    explained_disk_errors,
    read_manifest,
    remove_folder,
    scratch,
    seal,
    write_atomically,
)
from emnat.config import Config, build_config, differences, resolved_toml
from emnat.errors import UserError
from emnat.progress import log

_SECONDS = "seconds"
_LOCK = ".lock"
_OF_THE_DATA = ("data.", "text.", "seed")  # settings that what is prepared depends on
_CHECKSUM = "# sha256 of the lines above: "


@dataclass(frozen=True)
class Run:
    """A run directory and the config it belongs to."""

    directory: Path
    config: Config

    def artifact(self, name: str) -> Path:
        return self.directory / name

    def build(self, name: str, parents: Sequence[str], make: Callable[[Path], dict[str, Any] | None]) -> Path:
        """The finished folder of artifact `name`; `make` fills it unless an earlier process did, from these parents as
        they are now.

        What `make` returns is kept in the manifest, under `facts`. What it keeps in `scratch(folder)` to continue
        from after an interruption is removed once the artifact is whole.
        """
        final = self.artifact(name)
        partial, replaced = (final.with_name(final.name + suffix) for suffix in (".partial", ".replaced"))
        if final.is_symlink() and not final.exists():
            raise UserError(f"{final}: a link to {final.readlink()}, which is not there: is its disk mounted?")
        with explained_disk_errors(final):
            origins = {parent: content_digest(self.artifact(parent)) for parent in parents}
            if not final.exists() or not read_manifest(final).is_made_from(origins):
                if final.exists():  # a longer run has chosen another student, say; it stays until this is whole
                    log.info("%s: made anew, since what it is made from has changed.", name)
                _continue_or_start(partial, origins)
                started = time.monotonic() - _seconds_so_far(partial)
                try:
                    facts = make(partial) or {}
                except BaseException:  # a signal, too
                    with contextlib.suppress(OSError):
                        spent = f"{time.monotonic() - started:.3f}"
                        write_atomically(scratch(partial) / _SECONDS, spent.encode())
                    raise
                spent_s = time.monotonic() - started
                seal(partial, final, name, origins, self.config.seed, facts, spent_s, replaced)
            for left_over in (replaced, partial, final / SCRATCH):
                remove_folder(left_over)
            check_artifact(final)
        return final


@contextlib.contextmanager
def begin(config: Config) -> Iterator[Run]:
    """Open a run and keep other processes out of it; one that is refused has changed nothing."""
    directory = Path(config.run)
    _refuse_other_places(directory)
    with explained_disk_errors(directory):
        directory.mkdir(parents=True, exist_ok=True)
    with locked(directory):
        yield open_run(config)


def open_run(config: Config) -> Run:
    """Create the run directory, or continue the one that is there if it has the same config."""
    directory = Path(config.run)
    written = directory / "config.toml"
    _refuse_other_places(directory)
    if written.exists() and _has_made_something(directory):
        changed = differences(_read_run_config(written), config)
        if not _has_trained_something(directory):
            changed = [change for change in changed if change.startswith(_OF_THE_DATA)]
        if changed:
            raise UserError(
                f"{directory}: this run was started with other settings ({'; '.join(changed)}): "
                "choose another run directory with run=..., or restore the settings."
            )
    with explained_disk_errors(directory):
        directory.mkdir(parents=True, exist_ok=True)
        text = resolved_toml(config)
        write_atomically(written, (text + _CHECKSUM + _digest(text) + "\n").encode())
    return Run(directory, config)


def find_run(directory: Path) -> Run:
    """A run that exists, for the commands that only read it."""
    written = directory / "config.toml"
    if not written.exists():
        raise UserError(f"{directory}: not a run directory (it has no config.toml): make one with 'emnat train'.")
    return Run(directory, _read_run_config(written))


def run_directory_of(model: Path) -> Path | None:
    """The run that a directory is, or in which it lies."""
    folders = (model, *model.absolute().parents)
    return next((folder for folder in folders if (folder / "data.sha256").exists()), None)


@contextlib.contextmanager
def locked(directory: Path) -> Iterator[None]:
    """One process at a time may build in a run directory; the lock goes with the process, however it ends."""
    with explained_disk_errors(directory):
        handle = (directory / _LOCK).open("w")
    with handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise UserError(f"{directory}: another process is working in this run directory.") from None
        yield


def _refuse_other_places(directory: Path) -> None:
    if directory.exists() and not directory.is_dir():
        raise UserError(f"{directory}: a file, not a directory: choose another run directory with run=...")
    names = {path.name for path in directory.iterdir()} if directory.exists() else set()
    if "config.toml" not in names and names - {"config.toml.tmp", _LOCK}:
        raise UserError(f"{directory}: not empty and not a run directory: choose another with run=...")


def _has_made_something(directory: Path) -> bool:
    """Before that, a run may be begun again with other settings: the first ones may have named a wrong file."""
    return (directory / "data").exists() or (directory / "data.sha256").exists()


def _has_trained_something(directory: Path) -> bool:
    """What is made of the data lies in folders of stages, finished or not."""
    return any(path.suffix == ".partial" or (path / MANIFEST).exists() for path in directory.glob("*/*"))


def _continue_or_start(partial: Path, origins: dict[str, str]) -> None:
    """A partial folder is gone on with only if it was begun from the same parents, and only from its scratch: whatever
    else is in it, a process that was killed has left, half-written perhaps, under a name that only it knew."""
    begun_from = scratch(partial) / "parents.json"
    wanted, by_names = (json.dumps(form).encode() for form in (origins, list(origins)))  # names: by an older emnat
    if not begun_from.exists() or begun_from.read_bytes() not in (wanted, by_names):
        clear_folder(partial)
        write_atomically(scratch(partial) / "parents.json", wanted)
    clear_folder(partial, but=SCRATCH)


def _seconds_so_far(partial: Path) -> float:
    """Spent by processes that were stopped (what a killed one spent, nobody knows)."""
    try:
        return float((scratch(partial) / _SECONDS).read_text())
    except (FileNotFoundError, ValueError):
        return 0.0


def _read_run_config(path: Path) -> Config:
    try:
        text, _, ending = path.read_text(encoding="utf-8").rpartition(_CHECKSUM)
        if ending != _digest(text) + "\n":
            raise ValueError("its checksum is wrong")
        values = tomllib.loads(text)
    except ValueError as error:
        raise UserError(
            f"{path}: edited or damaged ({error}): restore it; a run is continued with 'emnat train CONFIG', "
            "and other settings need another run directory."
        ) from None
    return build_config(values, origin=str(path))


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
