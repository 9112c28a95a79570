"""`python -m utils.results_study`: see study.py."""

from utils import studies
from utils.results_study import study

studies.command(study.main, study.__doc__)
