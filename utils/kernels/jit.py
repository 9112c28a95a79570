"""Where Numba keeps the engine's compiled code, and what is said while it compiles.

The folder's name holds a hash over the sources of this package, the versions of Numba and LLVM
and the processor: Numba itself looks at one file only, and would go on with old code when a
function in another file has changed. Folders that no process has used for `KEPT_DAYS` are removed.
"""

import contextlib
import hashlib
import re
import shutil
import time
from functools import cache as once
from pathlib import Path

import llvmlite
import llvmlite.binding
import numba

from utils import cache

EXPECTED_SECONDS = 30  # for a whole step with its kernels, on two slow cores
KEPT_DAYS = 30


@once
def folder():
    """The folder for this state of the sources on this processor."""
    digest = hashlib.sha256()
    for file in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(file.read_bytes())
    target = (numba.config.CPU_NAME, numba.config.CPU_FEATURES)
    host = llvmlite.binding.get_host_cpu_name()
    digest.update(f"{numba.__version__} {llvmlite.__version__} {host} {target}".encode())
    return cache.folder() / "kernels" / digest.hexdigest()[:16]


@once
def _use(current):
    """Note the time of this use, once a process, and then look for old folders beside it."""
    current.mkdir(parents=True, exist_ok=True)
    (current / "used").touch()
    remove_old(current.parent, current.name, time.time())


def remove_old(parent, current, now):
    """Remove what other states of the sources left in `parent` and nobody used for KEPT_DAYS.

    What can't be removed is left for the next time: another process may hold a file open, or be
    removing the same folder. One that still starts from it compiles anew.
    """
    for other in parent.iterdir():
        if other.name == current or not re.fullmatch("[0-9a-f]{16}", other.name):
            continue
        with contextlib.suppress(OSError):
            if now - _last_use(other) > 86_400 * KEPT_DAYS:
                shutil.rmtree(other)


def _last_use(path):
    """When something in a folder was last written, in seconds as of `time.time`."""
    return max(part.stat().st_mtime for part in [path, *path.rglob("*")])


@contextlib.contextmanager
def cached():
    """Functions decorated with cache=True inside this block are kept in `folder()`."""
    _use(folder())
    before = numba.config.CACHE_DIR
    numba.config.CACHE_DIR = str(folder())
    try:
        yield
    finally:
        numba.config.CACHE_DIR = before


@contextlib.contextmanager
def announced(names):
    """Says so when one of the functions `names` isn't compiled yet, and how long it took.

    A file "<name>.done" beside Numba's own says that it is.
    """
    missing = [name for name in names if not (folder() / f"{name}.done").exists()]
    if missing:
        about = f"compiling the engine's kernels, once: {', '.join(missing)}"
        print(f"{about} (up to {EXPECTED_SECONDS} s) …", flush=True)
    start = time.perf_counter()
    yield
    if missing:
        print(f"compiled in {time.perf_counter() - start:.0f} s, kept for later", flush=True)
    folder().mkdir(parents=True, exist_ok=True)  # somebody may have emptied the cache
    for name in missing:
        (folder() / f"{name}.done").touch()
