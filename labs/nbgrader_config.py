"""nbgrader's settings for this course, for `cd labs && nbgrader …` and for `utils.course.labs`.

One careless submission must not stop the grading of a class: an infinite loop ends at the time
limit, a deleted check cell is put back, a copied one is marked and left out.
"""

from nbgrader.preprocessors import (
    CheckCellMetadata,
    ClearOutput,
    DeduplicateIds,
    OverwriteCells,
    OverwriteKernelspec,
)

c = get_config()  # noqa: F821  (nbgrader provides it)

c.CourseDirectory.course_id = "fewer-bits-fewer-weights-fewer-steps"
c.CourseDirectory.ignore = [
    ".ipynb_checkpoints",
    "*.pyc",
    "__pycache__",
    "feedback",
    "bugs.yaml",  # planted bugs give solutions away
]

# A cell that runs longer has failed, and the next one runs. Keep it well above any solution.
c.ExecutePreprocessor.timeout = 60
c.ExecutePreprocessor.interrupt_on_timeout = True

c.OverwriteCells.add_missing_cells = True


class CopiedCells(DeduplicateIds):
    """nbgrader keeps the last of several cells with one id; say so in the student's feedback.

    It also leaves the others with empty metadata, on which `add_missing_cells` fails (0.9.6).
    """

    def preprocess_cell(self, cell, resources, cell_index):
        grade_id = cell.metadata.get("nbgrader", {}).get("grade_id")
        cell, resources = super().preprocess_cell(cell, resources, cell_index)
        if grade_id and not cell.metadata.nbgrader:
            del cell.metadata["nbgrader"]
            note = f"copied cell: only the last cell with the id {grade_id!r} is graded"
            cell.source = f"# {note}\n{cell.source}" if cell.cell_type == "code" else f"*{note}*"
        return cell, resources


c.Autograde.sanitize_preprocessors = [
    ClearOutput,
    CopiedCells,
    OverwriteKernelspec,
    OverwriteCells,
    CheckCellMetadata,
]
