"""Run tests in many copies of the course without loading the big libraries each time.

Started by `mutations.py` as a script; it never imports `utils`. It loads torch, transformers and
SciPy once, then for each line on stdin, `{"tree", "tests", "limit_s"}`, forks a process that takes
`utils` and `tests` from that tree and runs pytest, and answers with a line `{"code", "output"}`.
A code of -1 means that time was up.
"""

import importlib
import json
import os
import signal
import sys
import tempfile
import time
from pathlib import Path

HEAVY = ("torch", "numpy", "scipy.stats", "transformers.models.llama.modeling_llama", "pytest")
OPTIONS = ["-x", "-q", "-p", "no:cacheprovider"]


def preload(names=HEAVY):
    """Import what most tests need; a library that is absent is left to the tests."""
    for name in names:
        try:
            importlib.import_module(name)
        except ImportError:
            continue


def answer(request):
    """Fork, run, wait: {"code": pytest's exit code or -1, "output": its text}."""
    with tempfile.TemporaryFile() as output:
        child = os.fork()
        if child == 0:
            _run(request["tree"], request["tests"], output)
        code = _wait(child, request["limit_s"])
        output.seek(0)
        return {"code": code, "output": output.read().decode("utf-8", "replace")}


def _run(tree, tests, output):
    """In the child: become a pytest of that tree. Does not return."""
    code = 3
    try:
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
        os.chdir(tree)
        sys.path.insert(0, tree)
        import pytest

        code = int(pytest.main([*OPTIONS, *tests]))
        sys.stdout.flush()
    finally:
        os._exit(code)


def _wait(child, limit_s):
    """The child's exit code; -1 when it was stopped at the limit."""
    end = time.monotonic() + limit_s
    while time.monotonic() < end:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.02)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return -1


def main():
    """Answer requests until stdin ends; what libraries print goes to stderr, not to the answers."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    here = str(Path(__file__).parent)
    sys.path[:] = [path for path in sys.path if path != here]
    preload()
    for line in sys.stdin:
        print(json.dumps(answer(json.loads(line))), file=answers, flush=True)


if __name__ == "__main__":
    main()
