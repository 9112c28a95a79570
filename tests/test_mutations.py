"""Every unit's planted wrong lines in `utils` are noticed by the tests that its list names."""

import pytest

from utils.course import mutations

ALL = [(unit, mutation) for unit in mutations.units() for mutation in mutations.load(unit)]
AT_MOST = 20


@pytest.fixture(scope="module")
def runner():
    """One process that has the big libraries loaded, for the whole module."""
    made = mutations.Runner()
    yield made
    made.close()


@pytest.fixture(scope="module")
def unchanged():
    """Each unit's tests run once unchanged; kept for the module."""
    return {}


@pytest.mark.parametrize("unit", mutations.units())
def test_a_list_is_short_and_applies(unit):
    found = mutations.load(unit)
    assert 3 <= len(found) <= AT_MOST
    for mutation in found:
        mutation.apply(mutations.ROOT)


def test_every_unit_has_a_list():
    labs = {path.parent.name for path in (mutations.ROOT / "labs/source").glob("*/*.ipynb")}
    assert labs <= set(mutations.units())


@pytest.mark.slow
@pytest.mark.parametrize(("unit", "mutation"), ALL, ids=[f"{u}-{m.name}" for u, m in ALL])
def test_the_tests_notice(unit, mutation, unchanged, runner):
    if unit not in unchanged:
        unchanged[unit] = mutations.baseline(mutations.load(unit), runner)
    assert unchanged[unit].caught, unchanged[unit].reason
    verdict = mutations.judge(mutation, runner)
    assert verdict.caught, verdict.reason


# The runner itself, on the scaffold's example

EXAMPLE = {
    "file": "utils/course/example.py",
    "find": "return round(x / step) * step",
    "tests": ("tests/test_example.py::test_the_nearest_point",),
}


def _judge(runner, **changes):
    return mutations.judge(mutations.Mutation(**{"name": "m", **EXAMPLE, **changes}), runner)


def test_a_noticed_change_is_caught_and_an_unnoticed_one_is_not(runner):
    assert _judge(runner, replace="return int(x / step) * step").caught
    harmless = _judge(runner, replace="return step * round(x / step)")
    assert not harmless.caught and "survived" in harmless.reason


def test_an_import_error_or_an_absent_test_is_not_a_catch(runner):
    broken = _judge(
        runner, find='"""The small example', replace='import absent  # """The small example'
    )
    assert not broken.caught
    absent = _judge(runner, replace="return x", tests=("tests/test_example.py::test_no_such",))
    assert not absent.caught and "not a failing test" in absent.reason


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"find": "step"}, "it must occur once"),
        ({"find": "no such line"}, "occurs 0 times"),
        ({"replace": EXAMPLE["find"]}, "two different parts of one line"),
        ({"file": "tests/test_example.py"}, "is not a file of utils/"),
    ],
)
def test_a_list_that_does_not_fit_the_code_is_refused(change, said):
    fields = {"name": "m", **EXAMPLE, "replace": "return x", **change}
    with pytest.raises(ValueError, match=said):
        mutations.Mutation(**fields).apply(mutations.ROOT)


def test_tests_that_fail_unchanged_are_reported(runner):
    wrong = mutations.Mutation("m", **{**EXAMPLE, "replace": "x", "tests": ("tests/absent.py",)})
    assert not mutations.baseline([wrong], runner).caught
