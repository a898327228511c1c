# All targets need git, make and Python 3.11 or 3.12, and a package index; nothing else.

VENV := .venv
# cpu, or gpu where there are GPUs; each checkout has one of them.
ENV ?= cpu
READY := $(VENV)/.ready
# lighteval needs other versions than the rest; only the comparison of the two graders of IFEval uses it.
LIGHTEVAL := .venv-lighteval
PRESET ?= tiny
# Mutants of `make mutation`, and the seed of their sample.
N ?= 50
SEED ?= 0
# A file stays with one worker, whose fixtures it shares; tests/conftest.py orders the files. On two cores a third and a
# fourth worker compute while others wait for a disk or a process; tests that start servers use both cores themselves.
PYTEST := pytest --dist loadfile --no-loadscope-reorder
export PATH := $(CURDIR)/$(VENV)/bin:$(PATH)

.PHONY: help reproduce share test fast test-all check mutation bench bench-gpu mlflow docs lock clean lighteval

reproduce: $(READY) ## train, evaluate and report the default campaign (PRESET=tiny)
	snakemake --config preset=$(PRESET)
	@redraft results --preset $(PRESET)

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "%-12s %s\n", $$1, $$2}' Makefile

# One zip of the report and of all that it links to.
share: $(READY) ## one zip of the report and of all that it links to
	redraft share --preset $(PRESET)

# Tests that start no server and ask no package index; the types are checked beside them, on one core.
test: $(READY) ## lint, types, and all tests that start no server
	@$(MAKE) --no-print-directory --jobs 2 check fast

fast: $(READY) ## the same tests without lint and types
	$(PYTEST) -n 4 -m "not servers" --fork-commands

# These and those that start vLLM, Ray for verl, a Slurm or lighteval, or ask a package index. The first run before
# lighteval's environment exists.
test-all: test lighteval ## also tests that start vLLM, Ray, Slurm or lighteval
	$(PYTEST) -n 2 -m servers

check: $(READY) ## lint, formats, types
	ruff check
	ruff format --check
	mypy
	snakefmt --check Snakefile workflows

# How many deliberate faults in the core the tests find, of a fixed random sample: docs/tests.md.
mutation: $(VENV)/.mutation ## how many deliberate faults the tests find (N=50 SEED=0)
	nice -n 15 python tests/mutation.py -n $(N) --seed $(SEED)

bench: $(READY) ## benchmarks beside the committed figures
	python -m benchmarks

# On a GPU (`make ENV=gpu bench-gpu`): the tests that need one, then tables of models of Qwen3's shapes with random weights.
bench-gpu: $(READY) ## on a GPU (ENV=gpu): its tests, then tables of Qwen3's shapes
	pytest -rs -k "gpu or cuda" tests/test_torch_engine.py tests/test_bursts.py tests/test_noise.py
	python -m benchmarks gpu

mlflow: $(READY) ## all runs in MLflow
	mlflow ui --host 127.0.0.1 --backend-store-uri sqlite:///results/$(PRESET)/mlflow.db

# The documentation as a site, with the JSON schemas, in build/docs.
docs: $(VENV)/.docs ## the documentation as a site in build/docs
	redraft schema build/extra/schemas
	sphinx-build --fail-on-warning --quiet -b html docs build/docs
	@echo "build/docs/index.html"

lighteval: $(LIGHTEVAL)/.ready ## the environment of lighteval

lock: ## resolve envs/*/requirements.in again
	sh envs/lock.sh

clean: ## remove the environments and Snakemake's records
	rm -rf $(VENV) $(LIGHTEVAL) .snakemake mutants

$(READY): $(wildcard envs/$(ENV)/*.lock) envs/punkt.txt envs/slurm.txt envs/install.sh pyproject.toml
	sh envs/install.sh $(VENV) $(ENV)

$(VENV)/.mutation: $(READY) envs/mutation.txt
	python -m pip install --quiet --disable-pip-version-check --no-deps -r envs/mutation.txt
	touch $@

$(VENV)/.docs: $(READY) envs/docs.txt
	python -m pip install --quiet --disable-pip-version-check --no-deps -r envs/docs.txt
	touch $@

$(LIGHTEVAL)/.ready: envs/lighteval/requirements.lock envs/punkt.txt envs/install.sh
	sh envs/install.sh $(LIGHTEVAL) lighteval
