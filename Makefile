# Two commands do all the set-up on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
BIN := .venv/bin
export OMP_NUM_THREADS ?= 1

.PHONY: demo test thorough kills gpu check bench matrix libraries format clean

.venv/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --constraint constraints.txt torch
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[test]'
	$(BIN)/python -m pip install --quiet --constraint constraints.txt setuptools wheel
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --no-build-isolation visdom  # asks for pkg_resources
	touch $@

demo: .venv/ready
	$(BIN)/python examples/demo.py

test: .venv/ready
	$(BIN)/python -m pytest -n 2 --dist worksteal -q

# What the suite tries in part: every habit on 2, 3 and 4 ranks, 200 random programs, 50 exits, ...
# PROGRAMS_FIRST=1000 composes other programs.
thorough: .venv/ready
	THOROUGH=1 $(BIN)/python -m pytest -n 2 --dist worksteal -q -m thorough

# Kills jobs at 200 random moments, about 10 minutes.
kills: .venv/ready
	KILLS=200 $(BIN)/python -m pytest -n 2 --dist worksteal -q tests/test_killed.py

# On a host with a GPU: one rank on NCCL, two that share it by gloo.
gpu: .venv/ready
	$(BIN)/python -m pytest -q -m gpu

check: .venv/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: .venv/ready
	$(BIN)/python benchmarks/compare.py
	$(BIN)/python benchmarks/collectives.py
	$(BIN)/python benchmarks/loading.py
	$(BIN)/python benchmarks/devices.py

.venv/peers: .venv/ready
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[matrix]'
	touch $@

# Measures again how this and the others shard every kind of loader.
matrix: .venv/peers
	$(BIN)/python benchmarks/matrix.py

# mmengine alone: it asks for opencv-python, which takes the place of opencv-python-headless.
# deepspeed's set-up imports torch.
.venv/libraries: .venv/ready
	DS_BUILD_OPS=0 $(BIN)/python -m pip install --quiet --constraint constraints.txt --no-build-isolation deepspeed
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[libraries]'
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --no-deps mmengine
	touch $@

# What people do with transformers, torchmetrics, ignite, Lightning, peft, MONAI, ... on 2 and 3 ranks.
libraries: .venv/libraries
	$(BIN)/python -m pytest -q tests/libraries

format: .venv/ready
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf .venv build dist *.egg-info
