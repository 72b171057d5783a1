# On a machine that has only Python and make, two commands do everything: `make demo` and `make test`.
# Both first make an environment in .venv from the exact versions in requirements.lock (requirements-3.10.lock for
# Python 3.10, which many libraries have left behind).

PYTHON ?= python3
# Processes that run the tests side by side, each with one thread: two of them are faster than two threads.
WORKERS ?= 2

BIN := .venv/bin
READY := .venv/.ready
LOCK := $(shell $(PYTHON) -c 'import sys; print("requirements%s.lock" % ("-3.10" * (sys.version_info < (3, 11))))')
TORCH := $(shell sed -n 's/^torch==//p' requirements.lock)

.DEFAULT_GOAL := help
.PHONY: help demo test test-slow check format lock docs clean

help:  ## print what can be made
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-10s %s\n", $$1, $$2 }' Makefile

demo: $(READY)  ## set up, then the whole job on a real model: about ten minutes, and a report to look at
	$(BIN)/headcount demo

test: check  ## set up, then lint, types, all tests and doctests but the slow ones
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS)

test-slow: $(READY)  ## the slow tests: real weights, real data, many kills
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m slow -n $(WORKERS)

check: $(READY)  ## lint and types only
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

format: $(READY)  ## let ruff fix and format the code
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

# The build backend comes from the lock too: an isolated build would download it (and may download torch) again. Packages
# that come as sources are built by --use-pep517, also where pip is old: without it, what they are built with is half
# installed.
$(READY): $(LOCK) pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { \
	  echo "headcount needs Python 3.10 or newer, as '$(PYTHON)'." >&2; \
	  echo "Name another one with: make PYTHON=python3.12 $(MAKECMDGOALS)" >&2; exit 1; }
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --disable-pip-version-check --quiet --use-pep517 -r $(LOCK)
	$(BIN)/python -m pip install --disable-pip-version-check --quiet --no-deps --no-build-isolation -e .
	@touch $@

# torch first and exactly: its newest version may differ, and its builds for CPU and CUDA differ in size by gigabytes.
lock:  ## write the lock anew from pyproject.toml (and again with PYTHON=python3.10)
	rm -rf .venv-lock && $(PYTHON) -m venv .venv-lock
	.venv-lock/bin/python -m pip install torch==$(TORCH) 'hatchling>=1.25'
	.venv-lock/bin/python -m pip install --no-build-isolation torch==$(TORCH) '.[dev]'
	grep '^#' $(LOCK) > .venv-lock/lock
	.venv-lock/bin/python -m pip freeze --all --exclude pip --exclude headcount \
	  | sed -e 's/^\(torch==[0-9.]*\)+.*/\1/' -e '/^\(nvidia\|cuda\|triton\)/d' >> .venv-lock/lock
	mv .venv-lock/lock $(LOCK) && rm -rf .venv-lock

# The tools of the extra `docs` alone: the reference is read from the source, so nothing of headcount is imported.
docs:  ## build the documentation as a site in site/; a dead link or an undocumented name fails
	test -d .venv-docs || $(PYTHON) -m venv .venv-docs
	sed -n '/^docs = \[/,/^\]/s/^  "\(.*\)",.*/\1/p' pyproject.toml > .venv-docs/requirements
	.venv-docs/bin/python -m pip install --disable-pip-version-check --quiet -r .venv-docs/requirements
	.venv-docs/bin/mkdocs build --strict

clean:  ## remove the environment and everything made
	rm -rf .venv .venv-lock .venv-docs site build dist demo-run demo-translation .pytest_cache .ruff_cache .mypy_cache .hypothesis
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +
