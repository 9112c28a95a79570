"""Where Numba keeps the engine's compiled code, and what is said while it compiles.

The folder's name holds a hash over the sources of this package, the versions of Numba and LLVM
and the processor: Numba itself looks at one file only, and would go on with old code when a
function in another file has changed.
"""

import contextlib
import hashlib
import time
from functools import cache as once
from pathlib import Path

import llvmlite
import llvmlite.binding
import numba

from utils import cache

EXPECTED_SECONDS = 30  # for a whole step with its kernels, on two slow cores


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


@contextlib.contextmanager
def cached():
    """Functions decorated with cache=True inside this block are kept in `folder()`."""
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
    for name in missing:
        (folder() / f"{name}.done").touch()
