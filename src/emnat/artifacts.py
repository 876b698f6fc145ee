"""Artifacts: folders that are whole or absent, with a manifest that says what made them and how every file ends.

Nothing is trusted because it is there: files are flushed before a folder gets its name, and checked against the
manifest, as the manifest is against itself, whenever they are read. Nothing here knows what an artifact contains.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from emnat._version import __version__
from emnat.errors import UserError

FORMAT = 2  # of run directories and model directories; another number is refused, never misread
MANIFEST = "manifest.json"
SCRATCH = "scratch"
_OWN_CHECKSUM = "sha256"
_NOT_THERE = (FileNotFoundError, NotADirectoryError, IsADirectoryError)  # other troubles with a disk are no damage


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


class Whole(_Strict):
    """How a file was when it was finished."""

    bytes: int
    sha256: str


class Manifest(_Strict):
    """What made an artifact, and all its files. Fields are written in this order; one may be added only at the end."""

    format: int
    artifact: str
    parents: list[str]
    seed: int
    emnat: str
    seconds: float
    facts: dict[str, Any]
    files: dict[str, Whole]
    emptied: bool = False
    parent_digests: list[str] = []  # in the order of `parents`

    def is_made_from(self, parents: Mapping[str, str]) -> bool:
        """Whether these, with these content digests, are its parents."""
        if self.parents and not self.parent_digests:  # by an older emnat, which noted names only, and not all of them
            return set(self.parents) <= parents.keys()
        return self.parents == list(parents) and self.parent_digests == list(parents.values())


def seal(
    folder: Path,
    final: Path,
    name: str,
    parents: Mapping[str, str],
    seed: int,
    facts: dict[str, Any],
    seconds: float,
    replaced: Path | None = None,
) -> None:
    """Make `folder` the artifact `final`: flush its files, write the manifest, rename.

    `parents` are artifacts and their content digests. One that is there already is moved out of the way, to `replaced`.
    """
    files = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path.name != MANIFEST and SCRATCH not in path.relative_to(folder).parts:
            sync(path)
            files[str(path.relative_to(folder))] = Whole(bytes=path.stat().st_size, sha256=checksum(path))
    manifest = Manifest(
        format=FORMAT,
        artifact=name,
        parents=list(parents),
        seed=seed,
        emnat=__version__,
        seconds=round(seconds, 3),
        facts=facts,
        files=files,
        parent_digests=list(parents.values()),
    )
    _write_manifest(folder, manifest)
    sync(folder)
    if replaced is not None and final.exists():
        remove_folder(replaced)
        final.rename(replaced)
    folder.rename(final)
    sync(final.parent)


def scratch(artifact: Path) -> Path:
    """Where an artifact under way keeps what it can be continued from."""
    folder = artifact / SCRATCH
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def read_facts(artifact: Path) -> dict[str, Any]:
    return read_manifest(artifact).facts


def read_manifest(artifact: Path) -> Manifest:
    path = inside(artifact, MANIFEST)
    try:
        raw = path.read_bytes()
        values: dict[str, Any] = json.loads(raw)
        as_written = _serialised(values) == raw  # to the last space
        written, own = values["format"], values.pop(_OWN_CHECKSUM, None)
    except (*_NOT_THERE, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise UserError(f"{path}: missing or damaged: {_remedy(artifact)}") from None
    if written != FORMAT:
        raise UserError(f"{path}: format {written}, this version reads format {FORMAT}.")
    if own != _digest(values) or not as_written:
        raise UserError(f"{path}: damaged (its checksum is wrong): {_remedy(artifact)}")
    try:
        return Manifest.model_validate(values)
    except ValueError:
        raise UserError(f"{path}: not written by emnat: {_remedy(artifact)}") from None


def check_artifact(artifact: Path) -> None:
    """Every file named in the manifest is there, whole and unchanged (or the artifact was emptied on purpose)."""
    manifest = read_manifest(artifact)
    _refuse_links_out(artifact)
    for name, whole in ({} if manifest.emptied else manifest.files).items():
        path = inside(artifact, name)
        size = path.stat().st_size if path.is_file() else None
        if size is None:
            problem = "missing"
        elif size != whole.bytes:
            problem = f"{size} bytes instead of {whole.bytes}"
        elif checksum(path) != whole.sha256:
            problem = "damaged (its checksum is wrong)"
        else:
            continue
        raise UserError(f"{path}: {problem}: {_remedy(artifact)}")


def content_digest(artifact: Path) -> str:
    """The same for artifacts with the same files, whenever and by whomever they were made."""
    files = read_manifest(artifact).files
    return hashlib.sha256(json.dumps({name: files[name].sha256 for name in sorted(files)}).encode()).hexdigest()


def empty_artifact(artifact: Path) -> int:
    """Delete the files of an artifact and keep its manifest, which goes on to say that it was made; bytes freed."""
    manifest = read_manifest(artifact)
    if not manifest.emptied:
        _write_manifest(artifact, manifest.model_copy(update={"emptied": True}))
    left = [path for name in manifest.files if (path := inside(artifact, name)).exists()]
    freed = sum(path.stat().st_size for path in left)
    for path in left:
        path.unlink()
    return freed


def inside(folder: Path, name: str) -> Path:
    """A file of a folder that may come from a stranger: names and links that lead out of it are refused.

    So is what is no file at all: a pipe would be waited for without end.
    """
    path = folder / name
    try:
        if "\0" in name or not path.resolve().is_relative_to(folder.resolve()):
            raise UserError(f"{path}: leads out of {folder}, which nothing in it may do.")
        if path.exists() and not (path.is_file() or path.is_dir()):
            raise UserError(f"{path}: neither a file nor a directory.")
    except (OSError, RuntimeError) as error:  # links in a circle, a name that is too long
        raise UserError(f"{path}: cannot be looked at ({error}).") from None
    return path


def _refuse_links_out(folder: Path) -> None:
    for path in folder.rglob("*"):
        if path.is_symlink():
            inside(folder, str(path.relative_to(folder)))


def remove_folder(folder: Path) -> None:
    """If it is there; of one that is a link, to another disk say, only the link."""
    if folder.is_symlink():
        folder.unlink()
    else:
        shutil.rmtree(folder, ignore_errors=True)


def clear_folder(folder: Path, but: str | None = None) -> None:
    """Empty a partial artifact, but for one name in it."""
    for path in folder.iterdir():
        if path.name != but:
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def write_atomically(path: Path, content: bytes) -> None:
    """`path` holds either what it held before or all of `content`."""
    temporary = path.with_name(path.name + ".tmp")
    with temporary.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def checksum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sync(path: Path) -> None:
    """Have a file, or the names in a folder, reach the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextlib.contextmanager
def explained_disk_errors(place: Path) -> Iterator[None]:
    """Turn 'no space', 'not permitted' and their like into a sentence."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise UserError(f"{place}: the disk is full; make space and run the same command again.") from error
        if error.errno in (errno.EACCES, errno.EROFS, errno.EPERM, errno.ENOTDIR):
            raise UserError(f"{error.filename or place}: cannot be read or written ({error.strerror}).") from error
        if error.errno == errno.EIO:
            raise UserError(
                f"{place}: the disk does not work ({error.strerror}); put it right and run again."
            ) from error
        raise


def _write_manifest(folder: Path, manifest: Manifest) -> None:
    values = manifest.model_dump(exclude_unset=True)
    write_atomically(folder / MANIFEST, _serialised(values | {_OWN_CHECKSUM: _digest(values)}))


def _serialised(values: dict[str, Any]) -> bytes:
    return json.dumps(values, indent=1, ensure_ascii=False).encode()


def _digest(values: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


def _remedy(artifact: Path) -> str:
    return f"delete {artifact} and run 'emnat train' again to rebuild it."
