# Two commands do all the set-up on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
BIN := .venv/bin
export OMP_NUM_THREADS ?= 1

.PHONY: demo test programs check bench matrix format clean

.venv/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --constraint constraints.txt torch
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[test]'
	touch $@

demo: .venv/ready
	$(BIN)/python examples/demo.py

test: .venv/ready
	$(BIN)/python -m pytest -n 2 --dist worksteal -q

# The suite runs 40 of these; PROGRAMS_FIRST=1000 tries others.
programs: .venv/ready
	PROGRAMS_COUNT=$${PROGRAMS_COUNT:-200} $(BIN)/python -m pytest -n 2 --dist worksteal -q tests/parity/test_programs.py

check: .venv/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: .venv/ready
	$(BIN)/python benchmarks/compare.py
	$(BIN)/python benchmarks/collectives.py
	$(BIN)/python benchmarks/loading.py

.venv/peers: .venv/ready
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[matrix]'
	touch $@

# Measures again how this and the others shard every kind of loader.
matrix: .venv/peers
	$(BIN)/python benchmarks/matrix.py

format: .venv/ready
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf .venv build dist *.egg-info
