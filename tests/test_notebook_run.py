"""Running notebooks: outputs are stored whole, a failing cell stops everything, nbval compares."""

import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
import small_notebook

from utils import fetch
from utils.course import notebooks, records
from utils.course.bootstrap import bootstrap
from utils.course.notebook_run import NotebookFailed, Progress, read, write

ROOT = Path(__file__).resolve().parents[1]
NBVAL = ["--nbval-lax", "--nbval-current-env", "-p", "no:cacheprovider"]


@pytest.fixture
def folder(tmp_path):
    """Scratch space, which lies below `_build`, so that a first cell finds the course."""
    assert ROOT in tmp_path.parents, "scratch files must lie in the checkout (see conftest.py)"
    return tmp_path


def _nbval(path, timeout_s=60):
    limit = f"--nbval-cell-timeout={timeout_s}"
    command = [sys.executable, "-m", "pytest", "-q", *NBVAL, limit, str(path)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True)


# Running


def test_a_record_is_kept_and_compared_with_what_is_glued(folder, monkeypatch):
    publish = "from utils import ledger\nledger.publish('06-x', 'twenty characters long', {'a': 1})"
    write(small_notebook.new(publish), folder / "06-x.ipynb")
    monkeypatch.setattr(notebooks.paths, "__defaults__", ((), folder))
    assert records.differences("06-x", folder) == ["06-x: no record 06-x.json: run `make records`"]
    notebooks.run(notebooks.paths(), write_to=lambda path: path)
    kept = records.keep("06-x", folder=folder)
    assert records.differences("06-x", folder) == []
    kept.write_text(kept.read_text().replace('"value": 1', '"value": 2'))
    assert records.differences("06-x", folder) == ["06-x: a is 1 here and 2 in the record"]


def test_run_stores_outputs_and_no_volatile_metadata(folder):
    notebook = small_notebook.new("print('a')\nprint('b')", "1 + 1", tags=["nbval-check-output"])
    notebook.cells[1].metadata["collapsed"] = True
    write(notebook, folder / "ok.ipynb")
    assert notebooks.main(["run", "ok", "--source", str(folder), "--in-place"]) == 0
    done = read(folder / "ok.ipynb")
    assert [c.execution_count for c in done.cells] == [1, 2, 3]
    assert [c.id for c in done.cells] == ["a-00", "a-01", "a-02"]
    assert done.cells[1].outputs[0].text == "a\nb\n"
    assert dict(done.cells[1].metadata) == {"tags": ["nbval-check-output"]}
    assert notebooks.main(["check", "ok", "--source", str(folder)]) == 0


def test_two_runs_store_the_same_bytes(folder):
    write(small_notebook.new("sum(range(10))"), folder / "twice.ipynb")
    notebooks.main(["run", "twice", "--source", str(folder), "--in-place"])
    first = (folder / "twice.ipynb").read_bytes()
    notebooks.main(["run", "twice", "--source", str(folder), "--in-place"])
    assert (folder / "twice.ipynb").read_bytes() == first


def test_a_failing_cell_stops_the_run_and_is_named(folder, capsys):
    """Field case 44."""
    write(small_notebook.new("1 + 1", "1/0"), folder / "bad.ipynb")
    before = (folder / "bad.ipynb").read_bytes()
    assert notebooks.main(["run", "bad", "--source", str(folder), "--in-place"]) == 1
    assert "bad.ipynb, cell 3 (a-02): ZeroDivisionError" in capsys.readouterr().err
    assert (folder / "bad.ipynb").read_bytes() == before


def test_a_dead_kernel_is_said(folder):
    write(small_notebook.new("import os\nos._exit(1)"), folder / "dead.ipynb")
    with pytest.raises(NotebookFailed, match=r"cell 2 \(a-01\): the kernel died"):
        notebooks.run([folder / "dead.ipynb"])


def test_an_unknown_slug_names_those_that_exist(folder, capsys):
    write(small_notebook.new(), folder / "known.ipynb")
    assert notebooks.main(["run", "unknown", "--source", str(folder)]) == 1
    assert "there are: known" in capsys.readouterr().err


def test_sync_rewrites_first_cells_after_the_address_changed(tmp_path):
    notebook = small_notebook.new("1 + 1")
    notebook.cells[0].source = bootstrap().replace("https://", "https://old.")
    for name in ("notebooks/x.ipynb", "labs/source/x/x.ipynb"):
        write(notebook, tmp_path / name)
    assert len(notebooks.sync(tmp_path)) == 2
    assert read(tmp_path / "notebooks/x.ipynb").cells[0].source == bootstrap()
    assert notebooks.sync(tmp_path) == []


def test_progress_gives_the_time_left():
    seconds, said = iter([0.0, 20.0, 20.0]), []
    progress = Progress(4, clock=lambda: next(seconds), say=lambda line, flush: said.append(line))
    progress.cell("06-rounding")
    assert said == ["  06-rounding: 1 of 4 cells, 20 s, about 60 s left"]


# nbval


@pytest.mark.slow
def test_nbval_fails_on_a_failing_cell(folder):
    """Field case 44: an error fails even in a cell whose output isn't compared."""
    notebook = small_notebook.ran(small_notebook.new("1/0"))
    write(notebook, folder / "bad.ipynb")
    done = _nbval(folder / "bad.ipynb")
    assert done.returncode == 1 and "ZeroDivisionError" in done.stdout


@pytest.mark.slow
def test_nbval_fails_on_a_changed_output_and_passes_twice(folder):
    """Field case 45: stderr and a figure's pixels don't matter; a compared output does."""
    bar = "import sys\nprint('50 %', file=sys.stderr)"
    plot = "import matplotlib.pyplot as plt\nline, = plt.plot([1, 2])\nplt.show()"
    data = "line.get_ydata().tolist()"
    notebook = small_notebook.new(bar, plot, data)
    notebook.cells[3].metadata["tags"] = ["nbval-check-output"]
    write(notebook, folder / "plot.ipynb")
    notebooks.main(["run", "plot", "--source", str(folder), "--in-place"])
    assert [_nbval(folder / "plot.ipynb").returncode for _ in range(2)] == [0, 0]
    changed = read(folder / "plot.ipynb")
    changed.cells[3].outputs[0].data["text/plain"] = "[1, 3]"
    write(changed, folder / "plot.ipynb")
    assert _nbval(folder / "plot.ipynb").returncode == 1


@pytest.mark.slow
def test_nbval_passes_with_a_cold_and_with_a_warm_model_cache(folder, monkeypatch):
    """Field case 45: the first run converts the model and says so; the outputs stay the same."""
    cold = folder / "cache"
    cold.mkdir()
    (cold / "packages").symlink_to(fetch.package("model").parent)
    monkeypatch.setenv("COURSE_CACHE", str(cold))
    load = "from utils import models\nloaded = models.load()"
    notebook = small_notebook.new(load, "loaded.card.parameters")
    notebook.cells[2].metadata["tags"] = ["nbval-check-output"]
    notebook.cells[2].outputs = [
        nbformat.v4.new_output("execute_result", {"text/plain": "134515008"}, execution_count=3)
    ]
    write(small_notebook.ran(notebook), folder / "load.ipynb")
    for _ in ("cold", "warm"):
        done = _nbval(folder / "load.ipynb", timeout_s=180)
        assert done.returncode == 0, done.stdout
