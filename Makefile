# Every target installs what it needs: Python packages in .venv, system packages with apt if it may.
#
#   make demo        the main job, on a small real pipeline
#   make test        every check of the project
#
# `make PYTHON=/path/to/python ...` chooses the interpreter of .venv.
# The same by hand:
#   python3 -m venv .venv && .venv/bin/pip install -r requirements-dev.txt
#   .venv/bin/pip install --no-build-isolation -e .

BASE_PYTHON = $(shell PYTHON='$(PYTHON)' tools/find_python.sh)
VENV_PYTHON := .venv/bin/python
RUN := PATH="$(CURDIR)/.venv/bin:$$PATH" $(VENV_PYTHON)

.DEFAULT_GOAL := help
.PHONY: help setup demo test bench docs lint format cpp-test mutate clean distclean

help:  ## show this list
	@sed -n 's|^\([a-z-]*\):.*## |\1@|p' Makefile | awk -F@ '{ printf "  make %-10s %s\n", $$1, $$2 }'

setup:  ## make .venv complete and build stagespan; takes no time when nothing has changed
	@base="$(BASE_PYTHON)"; test -n "$$base" && "$$base" tools/bootstrap.py

demo:  ## run the demo: report, signatures, harness, trace, breakdown, script
	@base="$(BASE_PYTHON)"; test -n "$$base" && "$$base" tools/bootstrap.py --need-torch
	@$(RUN) examples/wan_pipeline/demo.py

test: setup  ## run every check: C++ and Python tests, sanitizers, linters, demo, README
	@$(RUN) tools/check.py

bench: setup  ## measure what spans and reading traces cost, compared with other tools
	@sed '/^#/d' requirements-bench.txt | while read -r peer; do \
	  $(VENV_PYTHON) -m pip install -q "$$peer" </dev/null || echo "not available here: $$peer"; done
	@$(RUN) -m benchmarks
	@$(RUN) -m benchmarks.traces

docs: setup  ## build the documentation into build/docs
	@$(RUN) -m nox -s docs

lint: setup  ## check format, style and types
	@$(RUN) -m nox -s lint

format: setup  ## format the Python and C++ sources
	@$(RUN) -m ruff check --fix . && $(RUN) -m ruff format .
	@git ls-files -z '*.c' '*.cpp' '*.h' | xargs -0 .venv/bin/clang-format -i

cpp-test: setup  ## run the C++ tests: plain, ASan with UBSan, TSan
	@$(RUN) -m nox -s cpp

mutate: setup  ## change chosen modules in small ways and count what their tests find
	@$(VENV_PYTHON) -m pip install -q cosmic-ray==8.7.0
	@$(VENV_PYTHON) tools/mutate.py

clean:  ## remove what was built, keep .venv
	rm -rf build dist .nox .make/logs .make/demo .make/wheels .make/old-pip .make/mutate work_dirs .pytest_cache .mypy_cache .ruff_cache

distclean: clean  ## remove .venv too
	rm -rf .venv .make
