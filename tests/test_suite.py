"""The runner of `make test` counts what ran, names what did not, and fails if anything failed."""

from types import SimpleNamespace

import pytest

from utils.course import suite

REPORT = """<testsuites><testsuite>
<testcase name="test_a"/>
<testcase name="test_b"><failure message="no"/></testcase>
<testcase name="test_c"><error message="no"/></testcase>
<testcase name="test_search"><skipped message="no chromium on this machine"/></testcase>
</testsuite></testsuites>"""


@pytest.fixture
def counted(tmp_path):
    """The result of a stage with one test passed, two failed and one skipped."""
    report = tmp_path / "report.xml"
    report.write_text(REPORT)
    result = suite.Result("browser", seconds=3.0)
    suite._count(result, report, ok=False)
    return result


def test_a_skipped_check_is_not_counted_as_passed(counted):
    assert (counted.passed, counted.failed) == (1, 2)
    assert counted.skipped == ["test_search: no chromium on this machine"]


def test_the_summary_says_what_did_not_run_and_ends_with_the_counts(counted):
    lines = suite.summary([counted]).splitlines()
    assert "Did not run (not counted as passed):" in lines
    assert "  test_search: no chromium on this machine" in lines
    assert lines[-1] == "1 passed, 2 failed, 1 skipped"


def test_a_command_without_a_report_counts_as_one_check(tmp_path):
    result = suite.Result("style")
    suite._count(result, tmp_path / "absent.xml", ok=True)
    assert (result.passed, result.failed) == (1, 0)


@pytest.mark.parametrize(("code", "status"), [("pass", 0), ("raise SystemExit(3)", 1)])
def test_the_exit_status_follows_the_stages(monkeypatch, capsys, code, status):
    stage = suite.Stage("style", (["-c", code],), quick=True)
    monkeypatch.setattr(suite, "STAGES", (stage,))
    assert suite.main(["--quick"]) == status
    assert ("failed: python -c" in capsys.readouterr().out) == bool(status)


def test_each_process_has_one_thread_and_no_hub():
    found = suite.environment({})
    assert found["OMP_NUM_THREADS"] == "1" and found["HF_HUB_OFFLINE"] == "1"


def test_every_kind_of_test_has_a_stage():
    commands = [" ".join(c) for stage in suite.STAGES for c in stage.commands]
    for wanted in ("ruff check", "notebooks check", "--nbval-lax", "site html", "-m browser"):
        assert any(wanted in c for c in commands), wanted
    assert [s.name for s in suite.STAGES if s.quick] == ["style", "structure", "quick tests"]


@pytest.mark.parametrize("message, runs", [(suite.NO_KERNEL, 2), ("AssertionError", 1)])
def test_a_kernel_that_missed_its_start_gets_one_more_chance(monkeypatch, tmp_path, message, runs):
    """Only that: any other failure stands."""
    monkeypatch.setattr(suite, "REPORTS", tmp_path)
    seen = []

    def run(command):
        seen.append(command)
        body = f'<testcase name="a"><error message="{message}"/></testcase>'
        (tmp_path / "notebooks-0.xml").write_text(f"<testsuite>{body}</testsuite>")
        return SimpleNamespace(returncode=1)

    monkeypatch.setattr(suite, "_run", run)
    stage = suite.Stage("notebooks", (["-m", "pytest", "x"],))
    result = suite.run_stage(stage, say=lambda *_, **__: None)
    assert len(seen) == runs
    assert result.failed == 1 and result.failed_commands
