"""Commands for labs: make the student files, try the grading, run nbgrader, look at a submission.

    python -m utils.course.labs release [SLUG]    write labs/release/SLUG/SLUG.ipynb
    python -m utils.course.labs check [SLUG]      form, blank, solution, planted bugs: a table
    python -m utils.course.labs validate SLUG     the whole nbgrader pipeline, under _build
    python -m utils.course.labs inspect FILE...   one student's notebook, in words

Every command ends with exit code 0 when all is well and 1 otherwise.
"""

import argparse
import sys
from pathlib import Path

from utils.course import lab_check, lab_files, lab_inspect, lab_nbgrader, lab_release, lab_rules


def release(slugs):
    """Write the students' notebooks."""
    for slug in slugs:
        print(f"wrote {lab_release.write(lab_files.find(slug)).relative_to(lab_files.ROOT)}")
    return True


def check(slugs):
    """Form and runs of each lab."""
    return all([_check(lab_files.find(slug)) for slug in slugs])


def _check(lab):
    faults = lab_rules.problems(lab)
    if not _is_current(lab):
        faults.append(f"labs/release is not what the source gives: run release {lab.slug}")
    print(f"\n{lab.slug}: {len(faults)} faults of form")
    print("".join(f"    {fault}\n" for fault in faults), end="")
    rows = lab_check.check(lab)
    print(lab_check.table(rows))
    return not faults and not any(row.problems for row in rows)


def _is_current(lab):
    return lab.release.exists() and lab.release.read_text(encoding="utf-8") == lab_release.make(lab)


def validate(slugs):
    """nbgrader on each lab: the solution earns all automatic points, the untouched file none."""
    return all([_validate(lab_files.find(slug)) for slug in slugs])


def _validate(lab):
    submissions = {
        "solved": lab.source.read_text(encoding="utf-8"),
        "untouched": lab_release.make(lab),
    }
    found = lab_nbgrader.pipeline(lab, submissions, lab.build / "course")
    cells = lab_files.cells(lab_files.read(lab.source))
    automatic = sum(cell.points for cell in cells if cell.graded_code)
    for student, score, possible in found:
        print(f"{student:12} {score:g} of {possible:g} points ({automatic:g} of them automatic)")
    return {student: score for student, score, _ in found} == {"solved": automatic, "untouched": 0}


def inspect(files):
    """Say what is wrong with, and what passes in, students' notebooks."""
    clean = True
    for file in map(Path, files):
        report = lab_inspect.inspect(_lab_of(file), lab_files.read(file))
        print(lab_inspect.text(file, report))
        clean = clean and not report.failed and not report.notes
    return clean


def _lab_of(file):
    """The lab that a student's file belongs to, whatever was added to its name on the way."""
    names = [file.stem, file.resolve().parent.name]
    found = [slug for slug in lab_files.slugs() for name in names if slug in name]
    return lab_files.find(found[0] if found else file.stem)


def main(arguments=None):
    """The command line."""
    commands = {"release": release, "check": check, "validate": validate, "inspect": inspect}
    parser = argparse.ArgumentParser(prog="labs", description=__doc__.splitlines()[0])
    parser.add_argument("command", choices=commands)
    parser.add_argument("names", nargs="*", help="slugs of labs (default: all); files for inspect")
    asked = parser.parse_args(arguments)
    names = asked.names or ([] if asked.command == "inspect" else lab_files.slugs())
    if not names:
        parser.error("nothing to do: no lab in labs/source, or no file named")
    try:
        return 0 if commands[asked.command](names) else 1
    except ValueError as error:
        print(f"labs {asked.command}: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
