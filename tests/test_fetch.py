"""utils.fetch and utils.cache: pinned bytes, clear failures, nothing half-written."""

import hashlib
import subprocess
import sys
import zipfile
from pathlib import Path
from types import SimpleNamespace

import pytest

from utils import cache, fetch


@pytest.fixture
def registry(monkeypatch, tmp_path):
    """A registry with one package; `deliver` replaces its bytes, `None` makes it unreachable."""
    monkeypatch.setenv("COURSE_CACHE", str(tmp_path / "cache"))
    wheel = tmp_path / "toy.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("toy/data.txt", "forty-two")
    good = wheel.read_bytes()
    digest = hashlib.sha256(good).hexdigest()
    monkeypatch.setitem(fetch.PACKAGES, "toy", fetch.Package("toy", "1.0", digest, 1))
    state = SimpleNamespace(deliver=good, calls=[])

    def run(command, **_):
        state.calls.append(command)
        if state.deliver is None:
            return SimpleNamespace(returncode=1, stderr="ERROR: no route to host\n")
        target = command[command.index("--dest") + 1]
        with open(f"{target}/toy.whl", "wb") as file:
            file.write(state.deliver)
        return SimpleNamespace(returncode=0, stderr="")

    monkeypatch.setattr(subprocess, "run", run)
    return state


def kept_files():
    """What lies in the package folder, but for the locks."""
    return [p for p in (cache.folder() / "packages").iterdir() if not p.name.endswith(".lock")]


def test_a_package_is_fetched_once_without_dependencies(registry, capsys):
    assert fetch.read("toy", "toy/data.txt") == b"forty-two"
    assert fetch.read("toy", "toy/data.txt") == b"forty-two"
    assert len(registry.calls) == 1
    assert {"--no-deps", "toy==1.0"} <= set(registry.calls[0])
    assert "fetching toy 1.0" in capsys.readouterr().out


def test_other_bytes_are_refused_and_not_kept(registry):
    registry.deliver = b"tampered"
    with pytest.raises(ValueError, match="SHA-256"):
        fetch.package("toy")
    assert not kept_files()


def test_no_network_is_one_clear_line(registry):
    registry.deliver = None
    with pytest.raises(RuntimeError, match="could not be fetched.*no route to host.*network"):
        fetch.package("toy")
    assert not kept_files()


def test_a_cache_that_cannot_be_written_names_the_remedy(monkeypatch, tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    monkeypatch.setenv("COURSE_CACHE", str(blocked / "cache"))
    with pytest.raises(OSError, match="COURSE_CACHE"):
        cache.folder()


def test_a_failed_write_leaves_the_old_file_and_no_scratch(tmp_path):
    target = tmp_path / "result.json"
    target.write_text("old")
    with pytest.raises(RuntimeError), cache.write_atomically(target) as scratch:
        scratch.write_text("half")
        raise RuntimeError("killed")
    assert target.read_text() == "old" and list(tmp_path.iterdir()) == [target]


def test_a_finished_write_replaces_files_and_folders(tmp_path):
    with cache.write_atomically(tmp_path / "file") as scratch:
        scratch.write_text("new")
    assert (tmp_path / "file").read_text() == "new"
    for content in ("one", "two"):
        with cache.write_atomically(tmp_path / "folder") as scratch:
            scratch.mkdir()
            (scratch / "part").write_text(content)
    assert (tmp_path / "folder" / "part").read_text() == "two"
    assert {p.name for p in tmp_path.iterdir()} == {"file", "folder"}


RACE = """
import sys, time
from pathlib import Path
from utils import cache
target, log = Path(sys.argv[1]), Path(sys.argv[2])
with cache.one_at_a_time(target):
    if not target.exists():
        time.sleep(0.3)
        with log.open("a") as made:
            made.write("made\\n")
        target.write_text("content")
"""


def test_two_processes_make_a_thing_once(tmp_path):
    target, log = tmp_path / "folder" / "thing", tmp_path / "log"
    command = [sys.executable, "-c", RACE, str(target), str(log)]
    root = Path(__file__).resolve().parents[1]
    both = [subprocess.Popen(command, cwd=root) for _ in range(2)]
    assert [process.wait(timeout=60) for process in both] == [0, 0]
    assert log.read_text() == "made\n" and target.read_text() == "content"
