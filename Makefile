# Every target installs what it needs: Python packages in .venv, system packages with apt if it may.
#
#   make demo        the main job, on a small real pipeline
#   make test        the checks of every change
#
# `make PYTHON=/path/to/python ...` chooses the interpreter of .venv.
# The same by hand:
#   python3 -m venv .venv && .venv/bin/pip install -r requirements-dev.txt
#   .venv/bin/pip install --no-build-isolation -e .
# `.venv/bin/nox -l` lists the single checks; `.venv/bin/nox -s lint` runs one of them.

BASE_PYTHON = $(shell PYTHON='$(PYTHON)' tools/find_python.sh)
RUN := PATH="$(CURDIR)/.venv/bin:$$PATH" .venv/bin/python

# Of the machine with the GPU: 3.12, or that of PYTHON.
GPU_VERSION = $(if $(PYTHON),--version "$$($(PYTHON) -c 'import sys; print("%d.%d" % sys.version_info[:2])')")

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-all test-aarch64 test-install wheels gpu bench claims format clean distclean

help:  ## show this list
	@sed -n 's|^\([a-z0-9-]*\):.*## |\1@|p' Makefile | awk -F@ '{ printf "  make %-13s %s\n", $$1, $$2 }'

setup:  ## make .venv complete and build stagespan; takes no time when nothing has changed
	@base="$(BASE_PYTHON)"; test -n "$$base" && "$$base" tools/bootstrap.py

demo:  ## run the demo: report, signatures, harness, trace, breakdown, script
	@base="$(BASE_PYTHON)"; test -n "$$base" && "$$base" tools/bootstrap.py --need-torch
	@$(RUN) examples/wan_pipeline/demo.py

test: setup  ## run the checks of every change: linters, C++ and Python tests, docs, demo
	@$(RUN) -m nox --parallel 2 -s tests cpp lint docs demo </dev/null

wheels:  ## build the sdist and the wheels that are published into dist/, and check them
	@base="$(BASE_PYTHON)"; test -n "$$base" && "$$base" tools/wheels.py

test-all: setup  ## run every check: also other Pythons, TSan, stress, fuzzing, fresh seeds, fresh machines
	@$(RUN) -m nox --parallel 2 -s tests-all cpp-tsan cpp cpp-fuzz python fresh-machine lint docs demo </dev/null

test-aarch64: setup  ## run the C++ tests and the smoke test of the wheel for aarch64, in qemu-user
	@$(RUN) -m nox -s aarch64 </dev/null

gpu:  ## pack a folder with which a machine with an NVIDIA GPU tries everything on hardware, offline
	@base="$(BASE_PYTHON)"; test -n "$$base" && "$$base" tools/gpu/pack.py $(GPU_VERSION)

test-install: setup  ## install as users do: other Pythons, an old pip, no rights, clang only, offline
	@$(RUN) -m nox --parallel 2 -s fresh-machine plain-user python </dev/null

bench: setup  ## measure what spans and reading traces cost, compared with other tools
	@sed '/^#/d' requirements-bench.txt | while read -r peer; do \
	  $(RUN) -m pip install -q "$$peer" </dev/null || echo "not available here: $$peer"; done
	@$(RUN) -m benchmarks
	@$(RUN) -m benchmarks.traces

claims: setup  ## compare each claim of the pages of real traces with their raw events: claims.csv
	@TRACE_CLAIMS=claims.csv $(RUN) -m pytest -q -m "not wheel" tests/unit/trace/claims

format: setup  ## format the Python and C++ sources
	@$(RUN) -m ruff check --fix . && $(RUN) -m ruff format .
	@git ls-files -z '*.c' '*.cpp' '*.h' | xargs -0 .venv/bin/clang-format -i

clean:  ## remove what was built, keep .venv
	rm -rf build dist .nox .make work_dirs .pytest_cache .mypy_cache .ruff_cache

distclean: clean  ## remove .venv too
	rm -rf .venv
