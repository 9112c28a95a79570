"""Keep the evidence behind the book's numbers: `python -m utils.course.records` (`make records`).

First the long studies (`utils/*/study.py`, each resumable, each writing `records/UNIT.json`). Then
the notebooks: they are run on this machine, their outputs stored and, in
`records/notebooks/UNIT.json`, the evidence that each one's last cell published in that same run. So
a number that a page prints, the output it is glued from and the record that supports it come from
one run; `differences` says where they don't. What it does not do: decide which numbers a page
prints.
"""

import importlib
import json
import shutil
import subprocess
import sys

from utils import cache, ledger
from utils.course import notebooks
from utils.course.bootstrap import ROOT
from utils.course.notebook_run import NotebookFailed, read

FOLDER = ROOT / "records" / "notebooks"


def keep(slug, evidence=ledger.EVIDENCE, folder=FOLDER):
    """Check the evidence of one notebook and copy it to the records; its path."""
    source = evidence / f"{slug}.json"
    if not source.exists():
        raise NotebookFailed(f"{slug}: its last cell published no evidence (ledger.publish)")
    ledger.check(json.loads(source.read_text(encoding="utf-8")))
    with cache.write_atomically(folder / source.name) as scratch:
        shutil.copyfile(source, scratch)
    return folder / source.name


def glued(notebook):
    """{name: text} of the values that a notebook's stored outputs glue."""
    found = {}
    for cell in notebook.cells:
        for output in cell.get("outputs", ()):
            name = output.get("metadata", {}).get("scrapbook", {}).get("name")
            if name:
                prefix = output.metadata.scrapbook.get("mime_prefix", "")
                found[name] = output.data[f"{prefix}text/plain"]
    return found


def differences(slug, folder=FOLDER):
    """Where a notebook's glued values and its record disagree, one line each."""
    path = folder / f"{slug}.json"
    if not path.exists():
        return [f"{slug}: no record {path.name}: run `make records`"]
    content = json.loads(path.read_text(encoding="utf-8"))
    ledger.check(content)
    kept = {name: repr(entry["value"]) for name, entry in content["values"].items()}
    shown = glued(read(notebooks.paths([slug])[0]))
    names = sorted(n for n in kept.keys() | shown.keys() if kept.get(n) != shown.get(n))
    return [f"{slug}: {n} is {shown.get(n)} here and {kept.get(n)} in the record" for n in names]


def studies(slugs=()):
    """Module names of the long studies of these units (of all units if none is named)."""
    names = [f"utils.{path.parent.name}.study" for path in sorted(ROOT.glob("utils/*/study.py"))]
    return [n for n in names if not slugs or importlib.import_module(n).UNIT in slugs]


def main(slugs=()):
    """Run, store, keep; returns the exit status."""
    try:
        files = notebooks.paths(slugs)
        for name in studies(slugs):
            subprocess.run([sys.executable, "-m", name], cwd=ROOT, check=True)
        notebooks.run(files, write_to=lambda path: path)
        for path in files:
            print(f"wrote {keep(path.stem).relative_to(ROOT)}")
    except (NotebookFailed, subprocess.CalledProcessError) as failure:
        print(f"Failed: {failure}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
