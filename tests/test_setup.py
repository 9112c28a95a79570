"""Set-up: exact pins, one source of truth, and one clear line for what can go wrong."""

import ast
import re
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

from utils.course import setup

ROOT = Path(__file__).resolve().parents[1]


def _pins():
    lines = (ROOT / "requirements.txt").read_text(encoding="utf-8").splitlines()
    return [Requirement(line) for line in lines if line.strip() and not line.startswith("#")]


def _project():
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def _ranges():
    return [Requirement(line) for line in _project()["dependencies"]]


def test_every_requirement_is_pinned_exactly_and_torch_comes_first():
    for pin in _pins():
        assert re.fullmatch(r"==[\w.]+", str(pin.specifier)), f"{pin.name} is not pinned"
    assert _pins()[0].name == "torch"


def test_pins_lie_in_the_ranges_of_pyproject():
    pins = {canonicalize_name(pin.name): pin for pin in _pins()}
    for wanted in _ranges():
        pin = pins[canonicalize_name(wanted.name)]
        version = next(iter(pin.specifier)).version
        assert wanted.specifier.contains(version), f"{wanted} doesn't allow {pin}"


@pytest.mark.parametrize("pin", _pins(), ids=lambda pin: pin.name)
def test_the_environment_holds_the_pinned_version(pin):
    if pin.marker and not pin.marker.evaluate():
        pytest.skip(f"{pin.name} is not for this platform")
    assert pin.specifier.contains(Version(metadata.version(pin.name)).public, prereleases=True)


def test_environment_yml_takes_its_packages_from_requirements_txt():
    conda = yaml.safe_load((ROOT / "environment.yml").read_text(encoding="utf-8"))
    pip = next(d["pip"] for d in conda["dependencies"] if isinstance(d, dict))
    assert pip == ["-r requirements.txt"]
    python = next(d for d in conda["dependencies"] if str(d).startswith("python"))
    assert SpecifierSet(python.removeprefix("python")) == SpecifierSet(
        _project()["requires-python"]
    )


def test_setup_and_pyproject_agree_on_python():
    allowed = SpecifierSet(_project()["requires-python"])
    versions = [(3, minor) for minor in range(8, 16)]
    by_setup = [v for v in versions if setup.OLDEST <= v <= setup.NEWEST]
    assert by_setup == [v for v in versions if allowed.contains("{}.{}".format(*v))]


def test_what_utils_imports_is_declared():
    names = {"yaml": "pyyaml", "cycler": "matplotlib"}  # a part of matplotlib
    names["llama_cpp"] = "llama-cpp-python"
    optional = [Requirement(line) for line in _project()["optional-dependencies"]["bench"]]
    declared = {canonicalize_name(r.name) for r in [*_ranges(), *optional]}
    for path in (ROOT / "utils").rglob("*.py"):
        if "course" in path.relative_to(ROOT).parts:
            continue  # the course's own machinery runs in .venv alone
        for name in _imports(path) - {"utils"} - sys.stdlib_module_names:
            assert canonicalize_name(names.get(name, name)) in declared, f"{path} imports {name}"


def _imports(path):
    """Top-level packages that a file imports."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module.split(".")[0])
    return found


@pytest.mark.parametrize("version", [(3, 8, 1), (3, 10, 13), (3, 14, 0)])
def test_a_wrong_python_gets_one_line(version):
    with pytest.raises(setup.SetupError) as stopped:
        setup.check_python(version, "python3")
    line = str(stopped.value)
    assert "\n" not in line
    assert "3.11 to 3.13" in line and f"3.{version[1]}" in line and "PYTHON=python3." in line


@pytest.mark.parametrize("minor", [11, 12, 13])
def test_supported_pythons_pass(minor):
    setup.check_python((3, minor, 0), "python3")


def test_an_old_python_can_parse_the_setup():
    source = (ROOT / "utils/course/setup.py").read_text(encoding="utf-8")
    tree = ast.parse(source, feature_version=(3, 7))
    assert _imports(ROOT / "utils/course/setup.py") <= sys.stdlib_module_names
    assert not [n for n in ast.walk(tree) if isinstance(n, ast.NamedExpr | ast.Match)]


@pytest.mark.parametrize(
    ("output", "start"),
    [
        ("NewConnectionError\nERROR: No matching distribution found for x", "No network"),
        ("socket.gaierror: Temporary failure in name resolution", "No network"),
        ("error: command 'gcc' failed: No such file or directory", "No C compiler"),
        ("error: Microsoft Visual C++ 14.0 or greater is required", "No C compiler"),
        ("OSError: [Errno 28] No space left on device", "The disk is full"),
        ("ERROR: No matching distribution found for x==2", "The package index has no x==2"),
        ("ERROR: something else", "pip failed: something else"),
    ],
)  # fmt: skip
def test_a_failed_pip_is_explained_in_one_line(output, start):
    line = setup.explain(output)
    assert line.startswith(start) and "\n" not in line


def test_no_network_in_a_real_pip_gives_one_line(tmp_path):
    arguments = ["install", "--index-url", "http://127.0.0.1:9/simple", "--retries", "1"]
    arguments += ["--no-cache-dir", "--isolated", "no-such-package-here"]
    with pytest.raises(setup.SetupError, match=r"^No network: [^\n]*$"):
        setup.install(arguments, sys.executable, log=tmp_path / "pip.log")


def test_a_missing_compiler_is_said_and_does_not_stop():
    assert "no C++ compiler" in setup.compiler_note(which=lambda name: None)
    assert setup.compiler_note(which=lambda name: f"/bin/{name}") is None


def test_an_extra_index_reaches_pip():
    assert setup.pip_arguments("https://example.org/cpu")[-2:] == [
        "--extra-index-url",
        "https://example.org/cpu",
    ]
    assert "--extra-index-url" not in setup.pip_arguments("")


def test_the_commands_are_there():
    make = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in ("book", "html", "test", "check", "lab", "labs", "records", "clean"):
        assert re.search(rf"^{target}:", make, flags=re.M), f"no target {target}"
    assert "make test" in (ROOT / ".ci/run").read_text(encoding="utf-8")


def test_make_sets_up_before_everything_that_needs_python():
    make = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target, needs, recipe in re.findall(r"^([\w-]+):([^\n]*)\n((?:\t[^\n]*\n)+)", make, re.M):
        assert "$(RUN)" not in recipe or "setup" in needs, target


def test_the_package_can_be_installed_beside_another_torch():
    """Colab installs the course into its own environment: utils and its data must be in it."""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    found = tomllib.loads(text)["tool"]["setuptools"]
    assert found["packages"]["find"]["include"] == ["utils*"]
    for folder in (p for p in (ROOT / "utils").rglob("*") if p.is_dir() and _has_modules(p)):
        assert (folder / "__init__.py").exists(), f"{folder.relative_to(ROOT)} is not a package"
    suffixes = {s.removeprefix("*") for s in found["package-data"]["*"]}
    data = {p.suffix for p in (ROOT / "utils").rglob("*") if p.is_file() and p.suffix != ".py"}
    assert data - {".pyc"} <= suffixes, "a data file's suffix is missing in package-data"


def _has_modules(folder):
    return any(folder.glob("*.py"))


def test_licences_for_code_and_text():
    assert "Apache License" in (ROOT / "LICENSE").read_text(encoding="utf-8")
    assert "CC BY 4.0" in (ROOT / "LICENSE-TEXT").read_text(encoding="utf-8")


def test_nothing_in_the_repository_names_this_machine():
    files = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    if files.returncode:
        pytest.skip("not a git checkout")
    for name in files.stdout.split():
        path = ROOT / name
        if path.suffix in (".md", ".py", ".ipynb", ".yml", ".yaml", ".toml", ".txt", ".json"):
            text = path.read_text(encoding="utf-8")
            assert str(ROOT) + "/" not in text, f"{name} names this checkout's folder"


def test_the_citation_names_the_address_of_the_configuration():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    config = yaml.safe_load((ROOT / "_config.yml").read_text(encoding="utf-8"))
    assert citation["repository-code"] == config["repository"]["url"]
