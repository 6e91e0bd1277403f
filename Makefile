# Two commands do everything on a fresh machine: `make demo` and `make test`.
# Another Python has a virtual environment of its own: `make test PYTHON=python3.12`.
PYTHON ?= python3
VENV   ?= $(if $(filter python python3,$(PYTHON)),.venv,.venv-$(notdir $(PYTHON)))
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
PYTEST := OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 $(BIN)/python -m pytest -q -n 2
PYCODE := src tests benchmarks examples docs/hooks.py
EXTRAS := dev,docs,einet,ray,nvflare,serve
# What runs without a GPU; the others are named in benchmarks/README.md.
BENCH  ?= $(addprefix benchmarks/, circuit_speed.py learners.py interactions.py learnspn.py debd.py growth.py \
            federation.py privacy.py row_recovery.py coherence.py engines.py einet_cpu.py)

.PHONY: help demo test lint check coverage fuzz mutants load release-check docs bench clean

help:
	@echo "make demo      run the main job on built-in data"
	@echo "make test      run all tests (PYTHON=python3.12: with that Python, in .venv-python3.12;"
	@echo "               EXTRAS=dev,serve: without PyTorch, Ray and NVFlare, whose tests are skipped)"
	@echo "make lint      ruff, format, mypy, import direction"
	@echo "make check     make lint, then the fast tests (under 3 minutes)"
	@echo "make coverage  share of lines and branches that the tests run, engine tests left out"
	@echo "make fuzz      ten minutes of broken messages, model files, TOML, CSV and requests"
	@echo "make mutants   small changes of the code that protects rows: how many the tests notice"
	@echo "make load      200 users at the service for five minutes"
	@echo "make release-check  all that takes long: every fault, fuzz, mutants, load (about an hour)"
	@echo "make docs      build the documentation site into build/site"
	@echo "make bench     run benchmarks/ and write their tables to docs/benchmarks"
	@echo "make clean     remove what these commands made"

$(BIN)/python:
	@echo "== making a virtual environment in $(VENV)"
	@$(PYTHON) -c 'import sys; sys.exit("fedcircuits needs Python 3.11 or newer, this is " + sys.version.split()[0] if sys.version_info < (3, 11) else 0)'
	@$(PYTHON) -m venv $(VENV)

$(VENV)/.base: pyproject.toml constraints.txt | $(BIN)/python
	@echo "== installing fedcircuits"
	@$(PIP) -e .
	@touch $@

$(VENV)/.dev: pyproject.toml constraints.txt | $(BIN)/python
	@echo "== installing fedcircuits with what its tests need (PyTorch among it: some minutes)"
	@$(PIP) -e '.[$(EXTRAS)]'
	@touch $@ $(VENV)/.base

$(VENV)/.bench: pyproject.toml constraints.txt | $(VENV)/.dev
	@echo "== installing the peers that benchmarks compare with"
	@$(PIP) -e '.[$(EXTRAS),baselines]'
	@touch $@

demo: $(VENV)/.base
	@$(BIN)/fedcircuits demo

test: $(VENV)/.dev
	@echo "== all tests"
	@$(PYTEST) --dist loadgroup

lint: $(VENV)/.dev
	@echo "== ruff"
	@$(BIN)/ruff check $(PYCODE)
	@$(BIN)/ruff format --check $(PYCODE)
	@echo "== mypy"
	@$(BIN)/mypy
	@echo "== import direction"
	@$(BIN)/lint-imports

check: lint
	@echo "== fast tests"
	@$(PYTEST) -m "not slow and not engine"

coverage: $(VENV)/.dev
	@echo "== coverage of all tests but those that start an engine"
	@$(PYTEST) -m "not engine" --cov --cov-report=term:skip-covered

docs: $(VENV)/.dev
	@echo "== documentation site"
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet
	@echo "read it with: $(BIN)/python -m http.server -d build/site, or open build/site/index.html (no search)"

fuzz: $(VENV)/.dev
	@echo "== fuzz: ten minutes; finds are saved in runs/fuzz"
	@OMP_NUM_THREADS=1 $(BIN)/python tests/fuzzing/cases.py --minutes 10

mutants: $(VENV)/.dev
	@echo "== mutants of policy, messages, weights and storage"
	@OMP_NUM_THREADS=1 $(BIN)/python tests/mutants/run.py

load: $(VENV)/.dev
	@echo "== 200 users for five minutes"
	@$(BIN)/python benchmarks/load.py --seconds 300

release-check: $(VENV)/.dev
	@echo "== every fault at every message and every disk write"
	@FEDCIRCUITS_FULL=1 $(PYTEST) tests/federation/server/test_faults.py tests/test_full_disk.py --timeout=3600
	@$(MAKE) --no-print-directory fuzz mutants load

bench: $(VENV)/.bench
	@for script in $(BENCH); do echo "== $$script"; OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 $(BIN)/python $$script || exit 1; done

clean:
	rm -rf .venv .venv-* .bench-venv build dist runs .coverage* \
	    .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
