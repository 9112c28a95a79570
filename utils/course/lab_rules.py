"""The form that every lab has: exercises, checks that teach, an open question, planted bugs.

Each rule takes a `Sheet` and yields sentences, one per fault. Whether the checks do their work is
tried by `lab_check`, which runs them.
"""

import ast
import re
from collections import Counter
from dataclasses import dataclass

from utils.course import lab_files
from utils.course.bootstrap import bootstrap, repository_url
from utils.course.lab_files import HIDDEN, SOLUTION

EXERCISES = range(4, 9)
SHORTEST_MESSAGE = 40
REFERENCE = ("utils.quantization", "utils.sparsity", "utils.speculative", "utils.engine")
SECTION = re.compile(r"""section ["'“](.+?)["'”]""")
BUG_KEYS = {"name", "exercise", "find", "replace", "misconception"}


@dataclass(frozen=True)
class Sheet:
    """A lab read for judging: its raw notebook, its cells, its bugs, its chapter's headings."""

    notebook: object
    cells: list
    bugs: list
    headings: set

    @property
    def code(self):
        """The code cells."""
        return [cell for cell in self.cells if cell.kind == "code"]

    def exercises(self):
        """The exercises' names in order of appearance."""
        return list(dict.fromkeys(cell.exercise for cell in self.cells if cell.exercise))


def problems(lab):
    """Every fault of the lab's form, as sentences; [] when there is none."""
    notebook = lab_files.read(lab.source)
    sheet = Sheet(notebook, lab_files.cells(notebook), lab.bugs(), headings(lab.chapter))
    return [fault for rule in RULES for fault in rule(sheet)]


def headings(chapter):
    """The texts of a chapter's headings; an empty set where there is no chapter yet."""
    if not chapter.exists():
        return set()
    lines = chapter.read_text(encoding="utf-8").splitlines()
    return {line.lstrip("#").strip() for line in lines if re.match(r"#{1,6} ", line)}


def first_cell(sheet):
    """The first code cell is the course's own."""
    if not sheet.code or sheet.code[0].source != bootstrap():
        yield "the first code cell is not the text of utils.course.bootstrap.bootstrap()"
    elif sheet.code[0].grade or sheet.code[0].solution:
        yield "the first code cell must be neither graded nor a solution"


def clean(sheet):
    """No stored outputs, stable ids, no address that may change, plain Python."""
    for position, raw in enumerate(sheet.notebook.cells, start=1):
        if raw.get("outputs") or raw.get("execution_count"):
            yield f"cell {position} holds output; clear the source's outputs"
        if not raw.get("id"):
            yield f"cell {position} has no cell id; the release would change on each run"
        if raw.cell_type == "markdown" and repository_url() in raw.source:
            yield f"cell {position} names the repository's address; write the file's path instead"
    for cell in sheet.code:
        yield from _plain_python(cell)


def _plain_python(cell):
    try:
        tree = ast.parse(cell.source)
    except SyntaxError as error:
        yield f"cell {cell.position} is not plain Python ({error.msg}); labs use no % or !"
        return
    for name in _imports(tree):
        if name.startswith(REFERENCE):
            yield f"cell {cell.position} imports {name}: the lab builds what that module holds"


def _imports(tree):
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def grade_ids(sheet):
    """Every grade id once: nbgrader silently drops the earlier of two cells with the same id."""
    counts = Counter(cell.grade_id for cell in sheet.cells if cell.grade_id)
    for grade_id, count in counts.items():
        if count > 1:
            yield f"grade id {grade_id!r} stands in {count} cells: a copied cell? Give each its own"


def numbering(sheet):
    """ex1 … exN without a gap, N from 4 to 8."""
    names = sheet.exercises()
    if names != [f"ex{number}" for number in range(1, len(names) + 1)]:
        yield f"exercises are {', '.join(names) or 'missing'}: number them ex1, ex2, … in order"
    if len(names) not in EXERCISES:
        yield f"{len(names)} exercises: a lab has {EXERCISES[0]} to {EXERCISES[-1]}"


def shape_of_exercises(sheet):
    """Task, solution, visible check right after it, hidden tests, points."""
    for name in sheet.exercises():
        own = [cell for cell in sheet.cells if cell.exercise == name]
        solutions = [cell for cell in own if cell.solution and cell.kind == "code"]
        if len(solutions) != 1:
            yield f"{name}: {len(solutions)} solution cells; there must be one"
            continue
        yield from _around(sheet, name, solutions[0])
        yield from _graded(name, [cell for cell in own if cell.graded_code])


def _around(sheet, name, solution):
    if not lab_files.region(solution.source, SOLUTION):
        yield f"{name}: the solution cell has no region {SOLUTION[0]!r} … {SOLUTION[1]!r}"
    before, after = sheet.cells[solution.position - 2], sheet.cells[solution.position :][:1]
    if before.kind != "markdown":
        yield f"{name}: no task in a markdown cell right before the solution cell"
    if not after or after[0].grade_id != f"{name}-check" or not after[0].graded_code:
        yield f"{name}: the cell after the solution is not the graded cell '{name}-check'"


def _graded(name, cells):
    if not any(lab_files.region(cell.source, HIDDEN) for cell in cells):
        yield f"{name}: no hidden tests"
    for cell in cells:
        if cell.points <= 0 or not cell.locked:
            yield f"{cell.grade_id}: a graded cell has points above 0 and is locked"


def messages(sheet):
    """Each assert of a graded cell says what went wrong and which section to read again."""
    for cell in (cell for cell in sheet.code if cell.grade):
        try:
            tree = ast.parse(cell.source)
        except SyntaxError:
            continue  # `clean` reports it
        asserts = [node for node in ast.walk(tree) if isinstance(node, ast.Assert)]
        if not asserts:
            yield f"{cell.grade_id}: no assert"
        for node in asserts:
            yield from _message(cell, node, tree, sheet.headings)


def _message(cell, node, tree, known):
    where = f"{cell.grade_id} line {node.lineno}"
    text = _words(node.msg, tree)
    named = SECTION.findall(text)
    if len(text) < SHORTEST_MESSAGE:
        yield f"{where}: the assert's message is too short to teach ({len(text)} characters)"
    elif not named:
        yield f'{where}: the message names no section; write: section "HEADING"'
    for heading in named:
        if known and heading not in known:
            yield f"{where}: the chapter has no heading {heading!r}"


def _words(node, tree):
    """The constant text of a message: of a string, an f-string, or names assigned in the cell."""
    if node is None:
        return ""
    names = {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}
    values = [n.value for n in ast.walk(tree) if isinstance(n, ast.Assign) and _sets(n, names)]
    parts = (part for value in (node, *values) for part in ast.walk(value))
    constants = (part.value for part in parts if isinstance(part, ast.Constant))
    return "".join(value for value in constants if isinstance(value, str))


def _sets(assignment, names):
    return any(isinstance(t, ast.Name) and t.id in names for t in assignment.targets)


def open_question(sheet):
    """One manually graded question, its rubric before it, two sample answers in the source."""
    found = [cell for cell in sheet.cells if cell.kind == "markdown" and cell.grade]
    if len(found) != 1 or not found[0].solution or found[0].points <= 0:
        yield "there must be one open question: markdown, grade and solution true, points above 0"
        return
    answer = found[0]
    if "rubric" not in sheet.cells[answer.position - 2].source.lower():
        yield f"{answer.grade_id}: the cell before it holds no rubric"
    for word in ("**Excellent", "**Insufficient"):
        if word not in answer.source:
            yield f"{answer.grade_id}: no sample answer that starts with {word!r}"


def planted_bugs(sheet):
    """At least three, each one changed line of a solution."""
    if len(sheet.bugs) < 3:
        yield f"{len(sheet.bugs)} planted bugs: there must be at least 3 in bugs.yaml"
    for bug in sheet.bugs:
        if set(bug) != BUG_KEYS:
            yield f"bug {bug.get('name', bug)!r}: the keys are {', '.join(sorted(BUG_KEYS))}"
        else:
            yield from _bug(sheet, bug)


def _bug(sheet, bug):
    name, line = bug["name"], bug["find"].rstrip("\n")
    if "\n" in line or "\n" in bug["replace"].rstrip("\n"):
        yield f"bug {name}: find and replace are one line each"
    lines = [(cell, text.rstrip()) for cell in sheet.code for text in cell.source.split("\n")]
    hits = [cell for cell, text in lines if text == line.rstrip()]
    if len(hits) != 1:
        yield f"bug {name}: the line {line!r} occurs {len(hits)} times; it must occur once"
    elif hits[0].exercise != bug["exercise"] or not hits[0].solution:
        where, own = hits[0].grade_id, bug["exercise"]
        yield f"bug {name}: its line is in cell {where!r}, not in the solution of {own}"


RULES = (
    first_cell,
    clean,
    grade_ids,
    numbering,
    shape_of_exercises,
    messages,
    open_question,
    planted_bugs,
)
