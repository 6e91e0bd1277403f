# Two commands do everything on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
# What runs without a GPU; the others are named in benchmarks/README.md.
BENCH  ?= $(addprefix benchmarks/, circuit_speed.py learners.py interactions.py learnspn.py debd.py growth.py \
            federation.py privacy.py engines.py einet_cpu.py)

.PHONY: help demo test check bench clean

help:
	@echo "make demo    run the main job on built-in data"
	@echo "make test    run all tests"
	@echo "make check   lint, types, import direction, fast tests (under 3 minutes)"
	@echo "make bench   run benchmarks/ and write their tables to docs/benchmarks"
	@echo "make clean   remove what these commands made"

$(BIN)/python:
	@echo "== making a virtual environment in $(VENV)"
	@$(PYTHON) -c 'import sys; sys.exit("fedcircuits needs Python 3.11 or newer, this is " + sys.version.split()[0] if sys.version_info < (3, 11) else 0)'
	@$(PYTHON) -m venv $(VENV)

$(VENV)/.base: pyproject.toml constraints.txt | $(BIN)/python
	@echo "== installing fedcircuits"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e .
	@touch $@

$(VENV)/.dev: pyproject.toml constraints.txt | $(BIN)/python
	@echo "== installing fedcircuits with what its tests need (PyTorch among it: some minutes)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev,einet,ray,nvflare,serve]'
	@touch $@ $(VENV)/.base

$(VENV)/.bench: pyproject.toml constraints.txt | $(VENV)/.dev
	@echo "== installing the peers that benchmarks compare with"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev,einet,ray,nvflare,serve]' lightgbm
	@touch $@

demo: $(VENV)/.base
	@$(BIN)/fedcircuits demo

test: $(VENV)/.dev
	@echo "== running all tests"
	@OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 $(BIN)/python -m pytest -q -n 2 --dist loadgroup

check: $(VENV)/.dev
	@echo "== ruff"
	@$(BIN)/ruff check src tests benchmarks
	@$(BIN)/ruff format --check src tests benchmarks
	@echo "== mypy"
	@$(BIN)/mypy
	@echo "== import direction"
	@$(BIN)/lint-imports
	@echo "== fast tests"
	@OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 $(BIN)/python -m pytest -q -n 2 -m "not slow and not engine"

bench: $(VENV)/.bench
	@for script in $(BENCH); do echo "== $$script"; OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 $(BIN)/python $$script || exit 1; done

clean:
	rm -rf $(VENV) .bench-venv build dist runs .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
