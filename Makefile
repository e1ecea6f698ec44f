# Every target sets up what it needs in .venv, and no more: `make demo` and `make test` work on a fresh machine.
PYTHON ?= python3
BIN := .venv/bin
INSTALL := $(BIN)/python -m pip install --quiet --constraint constraints.txt
export OMP_NUM_THREADS ?= 1

# Where this is set, every rank of every test would compile the tests' modules anew.
export PYTHONDONTWRITEBYTECODE =

.PHONY: demo test slow thorough collections libraries launchers kills failures gpu versions check docs bench matrix format clean

# Two pip at once in one environment would overwrite each other's files.
.NOTPARALLEL:

# torch first, from the constraints: what comes later finds it there.
.venv/package: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(INSTALL) torch
	$(INSTALL) --editable .
	touch $@

# The extras of pyproject.toml, by name.
.venv/with-%: .venv/package
	$(INSTALL) --editable '.[$*]'
	touch $@

.venv/with-test: .venv/package
	$(INSTALL) --editable '.[test]'
	$(INSTALL) setuptools wheel
	$(INSTALL) --no-build-isolation visdom  # asks for pkg_resources
	touch $@

demo: .venv/with-examples
	$(BIN)/python examples/demo.py

# What is quick: every subject, some habits of each kind.
test: .venv/with-test
	$(BIN)/python -m pytest -n 2 --dist worksteal -q -m "not slow and not long" $(ONLY)

# What takes seconds a test: the other habits, interpreters that start, jobs that fail. PART=2/6 tries the third sixth.
slow: .venv/with-test
	PART=$(PART) $(BIN)/python -m pytest -n 2 --dist worksteal -q -m "slow and not long" $(ONLY)

# What these two try in part or not at all, before a release: every habit on 2, 3 and 4 ranks, 200 random programs,
# 50 exits, jobs that restart, notebooks, debuggers, ... PROGRAMS_FIRST=1000 composes other programs.
thorough: .venv/with-test
	THOROUGH=1 $(BIN)/python -m pytest -n 2 --dist worksteal -q -m "thorough or long" $(ONLY)

# verify on 91 scripts, sound and faulty; migrate on 20, to each of its three targets, and their runs on two ranks.
collections: .venv/with-test
	THOROUGH=1 $(BIN)/python -m pytest -n 2 --dist loadfile -q -m collection

# Kills jobs at 200 random moments, about 10 minutes.
kills: .venv/with-test
	KILLS=200 $(BIN)/python -m pytest -n 2 --dist worksteal -q tests/test_killed.py

# Has one rank of three fail in 31 ways, each at ten random moments, about 50 minutes.
failures: .venv/with-test
	FAILURES=10 $(BIN)/python -m pytest -n 2 --dist worksteal -q tests/test_failures.py

# On a host with a GPU: one rank on NCCL, two that share it by gloo; then ResNet-50 and GPT-2 small against DDP.
gpu: .venv/with-gpu
	$(BIN)/python -m pytest -q tests/test_gpu.py
	$(BIN)/python benchmarks/accelerator.py

# The suite on several versions of torch, each in an environment of its own, which takes some gigabytes.
# VERSIONS=2.15.0 tries one of them; SUITE='-m "not long"' all of the suite.
VERSIONS ?= 2.13.0 2.14.1 2.15.0
SUITE ?= -m "not slow and not long"
versions: $(VERSIONS:%=.venvs/torch-%/with-test)
	for version in $(VERSIONS); do \
		echo "torch $$version"; \
		.venvs/torch-$$version/bin/python -m pytest -n 2 --dist worksteal -q $(SUITE) $(ONLY) || exit 1; \
	done

.venvs/torch-%/with-test: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venvs/torch-$*
	sed 's/^torch==.*/torch==$*/' constraints.txt > .venvs/torch-$*/constraints.txt
	.venvs/torch-$*/bin/python -m pip install --quiet --constraint .venvs/torch-$*/constraints.txt torch
	.venvs/torch-$*/bin/python -m pip install --quiet --constraint .venvs/torch-$*/constraints.txt \
		--editable '.[test]' setuptools wheel
	.venvs/torch-$*/bin/python -m pip install --quiet --constraint .venvs/torch-$*/constraints.txt \
		--no-build-isolation visdom
	touch $@

check: .venv/with-check
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# The site, into site/. A link that leads nowhere is an error.
docs: .venv/with-docs
	$(BIN)/mkdocs build --strict

bench: .venv/package
	$(BIN)/python benchmarks/compare.py
	$(BIN)/python benchmarks/collectives.py
	$(BIN)/python benchmarks/loading.py
	$(BIN)/python benchmarks/devices.py
	$(BIN)/python benchmarks/turns.py
	$(BIN)/python benchmarks/share.py
	$(BIN)/python benchmarks/looks.py
	$(BIN)/python benchmarks/local_view.py

# Measures again how this and the others shard every kind of loader.
matrix: .venv/with-matrix
	$(BIN)/python benchmarks/matrix.py

# mmengine alone: it asks for opencv-python, which takes the place of opencv-python-headless.
# deepspeed's set-up imports torch.
.venv/with-libraries: .venv/with-test
	DS_BUILD_OPS=0 $(INSTALL) --no-build-isolation deepspeed
	$(INSTALL) --editable '.[libraries]'
	$(INSTALL) --no-deps mmengine
	touch $@

# What people do with transformers, torchmetrics, ignite, Lightning, peft, MONAI, ... on 2 and 3 ranks.
libraries: .venv/with-libraries
	$(BIN)/python -m pytest -q tests/libraries

# Debian packages of launchers that can be had. Open MPI and MPICH stand side by side; SLURM runs on this host alone.
DEBIAN := openmpi-bin mpich slurmctld slurmd slurm-client munge iproute2

.venv/with-launchers: .venv/with-test
	$(INSTALL) --editable '.[launchers]'
	dpkg -s $(DEBIAN) > /dev/null 2>&1 || { apt-get update; apt-get install --yes --no-install-recommends $(DEBIAN); }
	touch $@

# The real mpirun of Open MPI and MPICH, srun and Ray Train, on 2 and 3 ranks, and two hosts that this machine plays, for
# which it takes root with CAP_SYS_ADMIN and CAP_NET_ADMIN. Debian's packages are installed as root.
launchers: .venv/with-launchers
	$(BIN)/python -m pytest -q tests/launchers $(ONLY)

format: .venv/with-check
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf .venv .venvs build dist site *.egg-info
