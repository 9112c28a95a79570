"""Do the tests notice a wrong line? Change one line of `utils` at a time and let them fail.

    python -m utils.course.mutations [UNIT ...]    all units of tests/mutations by default

`tests/mutations/UNIT.yaml` is a list of `{name, file, find, replace, tests}`: `find` is a part of
one line that occurs once in `file`; `tests` are the pytest ids that must fail with it replaced.
Works on a copy below `_build`. The named tests must pass before. A mutation counts as caught only
when pytest reports failing tests: not when the module can't be imported, nothing is collected or
time is up.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[2]
LISTS = ROOT / "tests" / "mutations"
BUILD = ROOT / "_build" / "mutations"
COPIED = ("utils", "tests", "pyproject.toml", "_config.yml")
LEFT_OUT = shutil.ignore_patterns("__pycache__", "*.pyc", "mutations")
LIMIT_S = 60
PASSED, FAILED, TIME_WAS_UP = 0, 1, -1  # exit codes; every other one is a fault of the list
KEYS = {"name", "file", "find", "replace", "tests"}


@dataclass(frozen=True)
class Mutation:
    """One changed line and the tests that must notice it."""

    name: str
    file: str
    find: str
    replace: str
    tests: tuple

    def apply(self, root):
        """The text of the file with the change; ValueError where it can't be made in one place."""
        path = root / self.file
        if not path.is_file() or not self.file.startswith("utils/"):
            raise ValueError(f"{self.name}: {self.file} is not a file of utils/")
        text = path.read_text(encoding="utf-8")
        if "\n" in self.find or "\n" in self.replace or self.find == self.replace:
            raise ValueError(f"{self.name}: find and replace are two different parts of one line")
        if text.count(self.find) != 1:
            times = text.count(self.find)
            raise ValueError(
                f"{self.name}: {self.find!r} occurs {times} times in {self.file}; it must occur "
                "once: take in more of the line, or follow the line if it has changed"
            )
        changed = text.replace(self.find, self.replace)
        compile(changed, self.file, "exec")
        return changed


@dataclass(frozen=True)
class Verdict:
    """What became of a mutation: caught, or the reason why it wasn't; seconds spent."""

    name: str
    caught: bool
    reason: str
    seconds: float


def units():
    """The units that have a list."""
    return sorted(path.stem for path in LISTS.glob("*.yaml"))


def load(unit, folder=LISTS):
    """The unit's mutations. Raises ValueError for a missing or malformed list."""
    path = folder / f"{unit}.yaml"
    if not path.exists():
        raise ValueError(f"no mutations for {unit!r}; there are lists for: {', '.join(units())}")
    entries = yaml.safe_load(path.read_text(encoding="utf-8")) or []
    for entry in entries:
        if not isinstance(entry, dict) or set(entry) != KEYS or not entry["tests"]:
            raise ValueError(f"{path.name}: each entry has {', '.join(sorted(KEYS))}: {entry}")
    names = [entry["name"] for entry in entries]
    if len(names) != len(set(names)):
        raise ValueError(f"{path.name}: two mutations have the same name")
    return [Mutation(**{**entry, "tests": tuple(entry["tests"])}) for entry in entries]


def baseline(mutations, pytest):
    """The named tests must pass unchanged, else a failure proves nothing. Returns a Verdict."""
    tests = sorted({test for mutation in mutations for test in mutation.tests})
    with _tree() as tree:
        code, output, seconds = pytest(tree, tests)
    ran = code == PASSED and " passed" in output
    return Verdict("unchanged", ran, "" if ran else f"tests don't pass: {_tail(output)}", seconds)


def judge(mutation, pytest):
    """Apply one mutation in a copy and run its tests there. Returns a Verdict."""
    with _tree() as tree:
        try:
            (tree / mutation.file).write_text(mutation.apply(tree), encoding="utf-8")
        except (ValueError, SyntaxError) as error:
            return Verdict(mutation.name, False, str(error), 0.0)
        code, output, seconds = pytest(tree, mutation.tests)
    return Verdict(mutation.name, code == FAILED, _reason(code, output), seconds)


def _reason(code, output):
    if code == FAILED:
        return ""
    if code == PASSED:
        return "survived: no named test noticed the change"
    if code == TIME_WAS_UP:
        return f"no test failed within {LIMIT_S} s: choose a change that fails at once"
    return f"not a failing test (exit code {code}): {_tail(output)}"


def _tail(output):
    return " | ".join(output.strip().splitlines()[-6:])


class _tree(tempfile.TemporaryDirectory):
    """A copy of what tests need, below `_build`; removed at the end."""

    def __init__(self):
        BUILD.mkdir(parents=True, exist_ok=True)
        super().__init__(dir=BUILD)

    def __enter__(self):
        tree = Path(super().__enter__())
        for name in COPIED:
            source = ROOT / name
            if source.is_dir():
                shutil.copytree(source, tree / name, ignore=LEFT_OUT)
            elif source.exists():
                shutil.copy(source, tree / name)
        return tree


class Runner:
    """Runs tests in a copy: one thread, no bytecode kept, the copy's `utils` and no other.

    Asks one long-lived `mutation_server`, started at the first request; `close` ends it.
    """

    def __init__(self):
        self.server, self.log = None, BUILD / "server.log"

    def __call__(self, tree, tests):
        """(pytest's exit code, its output, seconds)."""
        start = time.perf_counter()
        request = {"tree": str(tree), "tests": list(tests), "limit_s": LIMIT_S}
        server = self._started()
        server.stdin.write(json.dumps(request) + "\n")
        server.stdin.flush()
        line = server.stdout.readline()
        if not line:
            raise ValueError(f"the process that runs the tests ended: see {self.log}")
        answer = json.loads(line)
        return answer["code"], answer["output"], time.perf_counter() - start

    def _started(self):
        if self.server is None:
            script = Path(__file__).with_name("mutation_server.py")
            with self.log.open("w", encoding="utf-8") as log:
                self.server = subprocess.Popen(
                    [sys.executable, str(script)], cwd=BUILD, env=_env(), text=True,
                    stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log,
                )  # fmt: skip
        return self.server

    def close(self):
        """End the server."""
        if self.server is not None:
            self.server.communicate()
            self.server = None


def _env():
    """Nothing of this process's pytest or path may reach the tests in the copy."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("PYTEST_", "PYTHONPATH"))}
    quick = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    return {**kept, **quick, "OMP_NUM_THREADS": "1"}


def run(unit, pytest):
    """Verdicts for a unit: first the unchanged tests, then every mutation. pytest: a `Runner`."""
    mutations = load(unit)
    first = baseline(mutations, pytest)
    return [judge(one, pytest) for one in mutations] if first.caught else [first]


def main(arguments=None):
    """The command line: exit code 0 when every mutation is caught."""
    asked, pytest = (sys.argv[1:] if arguments is None else arguments), Runner()
    try:
        return 0 if all([_report(unit, run(unit, pytest)) for unit in asked or units()]) else 1
    except ValueError as error:
        print(f"mutations: {error}", file=sys.stderr)
        return 1
    finally:
        pytest.close()


def _report(unit, verdicts):
    caught = sum(verdict.caught for verdict in verdicts)
    print(f"\n{unit}: {caught} of {len(verdicts)} mutations caught")
    for one in verdicts:
        state = "caught" if one.caught else "NOT CAUGHT"
        print(f"  {one.name:40} {state:10} {one.seconds:6.1f} s  {one.reason}")
    return caught == len(verdicts)


if __name__ == "__main__":
    sys.exit(main())
