"""Where compiled kernels are kept: folders of old sources go, whatever is in use stays."""

import os
import shutil
import time

import pytest

from utils.kernels import jit

DAY = 86_400
CURRENT, OTHER = "0123456789abcdef", "fedcba9876543210"


def kept(parent, name, days):
    """A folder with a file in a folder, all written `days` ago."""
    inner = parent / name / "kernels_1"
    inner.mkdir(parents=True)
    (inner / "step.nbc").write_bytes(b"code")
    for path in (inner / "step.nbc", inner, parent / name):
        os.utime(path, (time.time() - days * DAY,) * 2)
    return parent / name


def test_only_what_nobody_used_lately_is_removed(tmp_path):
    old, young = kept(tmp_path, OTHER, 31), kept(tmp_path, "1" * 16, 29)
    current, foreign = kept(tmp_path, CURRENT, 400), kept(tmp_path, "notes", 400)
    jit.remove_old(tmp_path, CURRENT, time.time())
    assert not old.exists()
    assert young.exists() and current.exists() and foreign.exists()


def test_a_folder_is_in_use_from_the_first_call_on(tmp_path, monkeypatch):
    current, old = kept(tmp_path, CURRENT, 400), kept(tmp_path, OTHER, 400)
    monkeypatch.setattr(jit, "folder", lambda: current)
    with jit.cached():
        pass
    jit.remove_old(tmp_path, "of newer sources", time.time())
    assert current.exists() and not old.exists()


def test_what_cannot_be_removed_is_left_for_the_next_time(tmp_path, monkeypatch):
    first, second = kept(tmp_path, OTHER, 400), kept(tmp_path, "1" * 16, 400)
    remove = shutil.rmtree

    def held(path):
        if path == first:
            raise PermissionError(13, "a file is open", str(path))
        remove(path)

    monkeypatch.setattr(jit.shutil, "rmtree", held)
    jit.remove_old(tmp_path, CURRENT, time.time())
    assert first.exists() and not second.exists()


@pytest.mark.parametrize("name", ["step", "int8"])
def test_a_cache_emptied_by_hand_is_no_error(tmp_path, monkeypatch, capsys, name):
    monkeypatch.setattr(jit, "folder", lambda: tmp_path / CURRENT)
    with jit.announced([name]):
        pass
    assert (tmp_path / CURRENT / f"{name}.done").exists()
    assert f"compiling the engine's kernels, once: {name}" in capsys.readouterr().out
