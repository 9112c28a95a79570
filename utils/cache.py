"""Where fetched packages and converted models are kept, and how files are written.

The folder is `$COURSE_CACHE`, else the user's cache folder. `write_atomically` gives a temporary
name to write to and renames it when the block ends without an error, so a reader never sees half
a file. `one_at_a_time` lets one process make what others wait for.
"""

import contextlib
import os
import shutil
import sys
import tempfile
from pathlib import Path

from filelock import FileLock

NAME = "fewer-bits-course"


def folder():
    """The cache folder, made if absent. OSError names the remedy where it can't be written."""
    path = Path(os.environ.get("COURSE_CACHE") or _user_cache() / NAME)
    try:
        path.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=path).close()
    except OSError as error:
        raise OSError(
            f"the cache folder {path} can't be written ({error.strerror}): "
            "set COURSE_CACHE to a folder with 2 GB free"
        ) from None
    return path


def _user_cache():
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches"
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA", Path.home() / "AppData" / "Local"))
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")


def one_at_a_time(path):
    """A lock between processes for making `path`; look again for it once the lock is held."""
    path.parent.mkdir(parents=True, exist_ok=True)
    return FileLock(path.with_name(f".{path.name}.lock"))


@contextlib.contextmanager
def write_atomically(path):
    """Yield a temporary path beside `path` (file or folder); rename it to `path` on success."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
    try:
        yield scratch / path.name
        if path.is_dir():
            shutil.rmtree(path)
        os.replace(scratch / path.name, path)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
