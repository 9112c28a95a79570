# The course's commands. Each one first makes .venv and installs requirements.txt into it.
#   make html    the book from the stored outputs        make test    every check
#   make book    run all notebooks here, then the book   make check   the quick checks
#   make lab     JupyterLab                              make clean   delete what was built
#   make bench   the engine against llama.cpp and transformers, 15 minutes
#
# PYTHON=python3.12    the Python that makes .venv (3.11 to 3.13)
# TORCH_INDEX=URL      one more package index, for the CPU build of torch (see README)

PYTHON ?= python3
TORCH_INDEX ?=
export TORCH_INDEX

RUN := .venv/bin/python
READY := .venv/.installed

.PHONY: help setup book html test check lab labs notebooks records bench autogptq mutations new-unit clean

help:
	@sed -n 's/^# \{0,1\}//p' Makefile | head -n 8

setup: $(READY)

$(READY): requirements.txt
	@$(PYTHON) utils/course/setup.py

html: setup
	@$(RUN) -m utils.course.site html

book: setup
	@$(RUN) -m utils.course.site book

test: setup
	@$(RUN) -m utils.course.suite

check: setup
	@$(RUN) -m utils.course.suite --quick

lab: setup
	@$(RUN) -m jupyter lab --notebook-dir=.

# For authors: run notebooks in place and store their outputs (SLUG=06-rounding for one of them).
notebooks: setup
	@$(RUN) -m utils.course.notebooks run $(SLUG) --in-place

labs: setup
	@$(RUN) -m utils.course.labs release $(SLUG)
	@$(RUN) -m utils.course.labs check $(SLUG)

# For authors: the same, and keep the evidence of that run in records/.
records: setup
	@$(RUN) -m utils.course.records $(SLUG)

# On a machine with nothing else to do; llama.cpp is optional (requirements-bench.txt).
bench: setup
	@$(RUN) -m utils.bench

# Can the archived AutoGPTQ read a checkpoint of unit 08? In an environment of its own, some minutes.
autogptq: setup
	@$(RUN) -m utils.quantization.autogptq

mutations: setup
	@$(RUN) -m utils.course.mutations $(SLUG)

new-unit: setup
	@$(RUN) -m utils.course.new_unit --slug "$(SLUG)" --title "$(TITLE)"

clean:
	rm -rf _build .pytest_cache .ruff_cache
	find . -name __pycache__ -not -path "./.venv/*" -prune -exec rm -rf {} +
