"""Make `.venv` and install `requirements.txt` into it, or say in one line what is wrong.

Run by the system's Python (`python3 utils/course/setup.py`), so it uses the standard library alone
and syntax that an old Python can still parse: a wrong version must get a clear line, not a
SyntaxError. It does not touch the system's packages, and needs no compiler: it only says when one
is missing, because `torch.compile` will want it.
"""

import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
VENV = ROOT / ".venv"
LOG = ROOT / "_build" / "setup.log"
OLDEST, NEWEST = (3, 11), (3, 13)
COMPILERS = ("c++", "g++", "clang++", "cl")

# What pip prints -> what it means and what helps. The first match counts.
FAILURES = (
    (
        r"No space left on device",
        "The disk is full: the set-up needs 3 GB free, 8 GB with the CUDA build of torch.",
    ),
    (
        r"NewConnectionError|NameResolutionError|Name or service not known|Network is unreachable"
        r"|Temporary failure in name resolution|Could not resolve|Connection refused"
        r"|ConnectTimeoutError|Read timed out|ProxyError|nodename nor servname",
        "No network: pip can't reach the package index. Connect and run the same command again, "
        "or name a local index with PIP_INDEX_URL.",
    ),
    (
        r"command '[^']*(?:gcc|cc|clang|cl\.exe|\+\+)[^']*' failed|Microsoft Visual C\+\+"
        r"|(?:gcc|cc|c\+\+|clang): (?:command )?not found|No such file or directory: '(?:gcc|cc)'"
        r"|[Uu]nable to find (?:a )?(?:vcvarsall|compiler)",
        "No C compiler, and a package has no ready-made build for this machine: install gcc or "
        "clang (Debian: build-essential; macOS: xcode-select --install).",
    ),
    (
        r"No matching distribution found for (\S+)",
        "The package index has no {0} for this machine and Python version.",
    ),
    (
        r"THESE PACKAGES DO NOT MATCH THE HASHES",
        "A download is broken: run the same command again.",
    ),
)


class SetupError(Exception):
    """One line: what is wrong and what helps."""


def check_python(version=sys.version_info, executable=sys.executable):
    """Raise SetupError unless `version` is one that the pinned packages support."""
    found = tuple(version[:2])
    if OLDEST <= found <= NEWEST:
        return
    good = next((name for name in _pythons() if _runs(name)), "python3.12")
    raise SetupError(
        f"The course needs Python {_dotted(OLDEST)} to {_dotted(NEWEST)}, and {executable} is "
        f"{_dotted(found)}: run it again with PYTHON={good}"
    )


def _runs(name):
    """True for a Python that starts: a version manager's stub may be on the path without one."""
    try:
        done = subprocess.run(
            [name, "--version"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
    except OSError:
        return False
    return done.returncode == 0


def _dotted(version):
    return ".".join(str(part) for part in version)


def _pythons():
    return [f"python3.{minor}" for minor in range(NEWEST[1], OLDEST[1] - 1, -1)]


def compiler_note(which=shutil.which):
    """One line when no C++ compiler is there, else None. Nothing fails without one."""
    if any(which(name) for name in COMPILERS):
        return None
    return (
        "Note: no C++ compiler was found. The course runs without one, but torch.compile needs it "
        "(Debian: build-essential; macOS: xcode-select --install)."
    )


def explain(output):
    """What the output of a failed pip means, in one line."""
    for pattern, meaning in FAILURES:
        match = re.search(pattern, output)
        if match:
            return meaning.format(*match.groups())
    errors = re.findall(r"^ERROR: (.*)$", output, flags=re.M)
    return "pip failed: " + (errors[-1] if errors else "see the log")


def pip_arguments(torch_index=""):
    """pip's arguments; `torch_index` adds an index, for the CPU build of torch."""
    extra = ["--extra-index-url", torch_index] if torch_index else []
    return ["install", "--disable-pip-version-check", "-r", str(ROOT / "requirements.txt")] + extra


def venv_python(venv=VENV):
    """The environment's Python."""
    return venv / ("Scripts/python.exe" if os.name == "nt" else "bin/python")


def make_venv(venv=VENV):
    """Create the environment, or keep a working one of a supported version."""
    if venv_python(venv).exists() and _works(venv_python(venv)):
        return
    command = [sys.executable, "-m", "venv", "--clear", str(venv)]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    if done.returncode:
        raise SetupError(
            f"{sys.executable} can't make a virtual environment: install its venv module "
            "(Debian: python3-venv), or name another Python with PYTHON=..."
        )


def _works(python):
    question = f"import sys, pip; sys.exit(not {OLDEST} <= sys.version_info[:2] <= {NEWEST})"
    try:
        done = subprocess.run([str(python), "-c", question], stderr=subprocess.DEVNULL)
    except OSError:
        return False
    return done.returncode == 0


def install(arguments, python, log=LOG):
    """Run pip, showing which package it is at. Raises SetupError with one line if it fails."""
    log.parent.mkdir(parents=True, exist_ok=True)
    command = [str(python), "-m", "pip"] + arguments
    started, last = time.time(), 0.0
    with log.open("w", encoding="utf-8") as kept:
        pip = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        for raw in pip.stdout:
            line = raw.decode("utf-8", "replace")
            kept.write(line)
            late = line.startswith("Collecting") and time.time() - last > 5
            if late or line.startswith("Installing collected"):
                last = time.time()
                print(f"  {last - started:4.0f} s  {line.strip()[:70]}", flush=True)
    if pip.wait():
        reason = explain(log.read_text(encoding="utf-8"))
        raise SetupError(f"{reason} (The whole log: {log})")


def main(environ=os.environ):
    """Set up; returns the exit status."""
    started = time.time()
    try:
        check_python()
        if compiler_note():
            print(compiler_note())
        print("Setting up .venv: 2 to 10 minutes, 3.3 GB (about 7 GB with the CUDA build of torch)")
        make_venv()
        install(pip_arguments(environ.get("TORCH_INDEX", "")), venv_python())
    except SetupError as problem:
        print(f"Set-up stopped. {problem}", file=sys.stderr)
        return 1
    (VENV / ".installed").write_text("requirements.txt is installed\n", encoding="utf-8")
    print(f"Set up in {time.time() - started:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
