# All targets need only git, make, Python 3.11 or 3.12, and a package index. `make help` lists them.

VENV := .venv
READY := $(VENV)/.ready
INSTALLED := $(shell cat $(READY) 2> /dev/null)
# Environment of this checkout: cpu, or gpu on a machine with GPUs. The installed one is the default. CUDA is 12 or 13 for
# gpu, by default what the driver supports. Variables of these names in the shell are ignored, since Lmod sets ENV to a
# start-up file.
ifneq ($(origin ENV),command line)
ENV := $(or $(patsubst gpu-cuda12,gpu,$(INSTALLED)),cpu)
endif
ifneq ($(origin CUDA),command line)
CUDA :=
endif
ifneq ($(filter-out help clean lock,$(or $(MAKECMDGOALS),reproduce)),)
# Its folder in envs/.
NAME := $(shell sh envs/choose.sh "$(ENV)" "$(CUDA)" "$(INSTALLED)")
ifeq ($(NAME),)
$(error no environment was chosen, see above)
endif
endif
# Separate environment for the comparison of IFEval's two graders: lighteval needs other versions than the rest.
LIGHTEVAL := .venv-lighteval
# Separate environment for the rollout function of TRL, as TRL's users have one.
TRL := .venv-trl
# As envs/gpu, with vLLM's build for processors: its vLLM is another than that of envs/cpu.
VLLM_OF_GPU := .venv-vllm-of-gpu
PRESET ?= tiny
PAPER ?= spec_rl
# Number of mutants of `make mutation`, and the seed of their sample.
N ?= 50
SEED ?= 0
# All tests of a file run in one worker, which shares their fixtures; tests/conftest.py orders the files. On two cores a
# third and a fourth worker compute while others wait for a disk or a process; tests that start servers use both cores.
PYTEST := pytest --dist loadfile --no-loadscope-reorder
# See envs/install.sh.
export PIP_USER := 0
export PATH := $(CURDIR)/$(VENV)/bin:$(PATH)

.PHONY: help reproduce reference share test fast test-servers test-all check mutation bench bench-gpu mlflow docs site lock clean lighteval trl vllm-of-gpu

reproduce: $(READY) ## run the workflow at PRESET (default: tiny) and print the results
	snakemake --config preset=$(PRESET)
	@redraft results --preset $(PRESET)

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "%-12s %s\n", $$1, $$2}' Makefile

share: $(READY) ## pack the report and all files that it links to into one zip
	redraft share --preset $(PRESET)

# Types are checked in parallel, on one core.
test: $(READY) ## check style and types, and run all tests without servers or a package index
	@$(MAKE) --no-print-directory --jobs 2 check fast

fast: $(READY) ## run the tests without servers or a package index
	$(PYTEST) -n 4 -m "not servers" --fork-commands

test-servers: $(READY) ## run the tests that start vLLM, Ray, Slurm, lighteval or TRL, or use a package index
	@$(MAKE) --no-print-directory --jobs 2 lighteval trl
	$(PYTEST) -n 3 -m "servers and not thorough"

# `test` comes first, since it must pass without the other environments. Thorough tests are by themselves: one on two
# nodes and another run under verl do not fit into 24 GiB.
test-all: test test-servers vllm-of-gpu ## run all tests, also those that only changes of what they test can break (docs/tests.md)
	pytest -m thorough

reference: $(READY) ## publish the finished campaign of PAPER at PRESET in results/reference
	redraft publish $(PAPER) --preset $(PRESET)

check: $(READY) ## check style, formatting and types
	ruff check
	ruff format --check
	mypy
	snakefmt --check Snakefile workflow workflows
	snakemake --lint

mutation: $(VENV)/.mutation ## count the deliberate faults that the tests detect, of N (docs/tests.md)
	nice -n 15 python tests/mutation.py -n $(N) --seed $(SEED)

bench: $(READY) ## run all benchmarks and compare them with the committed figures
	python -m benchmarks

# The benchmark uses models of Qwen3's shapes with random weights.
bench-gpu: $(READY) ## run the tests and benchmarks that need a GPU (with ENV=gpu)
	pytest -rs -k "gpu or cuda" tests/test_torch_engine.py tests/test_bursts.py tests/test_noise.py
	python -m benchmarks gpu
	python -m benchmarks.bitwise

mlflow: $(READY) ## show the runs of PRESET in MLflow on this machine
	mlflow ui --host 127.0.0.1 --backend-store-uri sqlite:///results/$(PRESET)/mlflow.db

docs: $(VENV)/.docs ## build the documentation site, with the JSON schemas, in build/docs
	redraft schema build/extra/schemas
	sphinx-build --fail-on-warning --quiet -b html docs build/docs
	@echo "build/docs/index.html"

site: docs ## build a site of documentation and published results in build/site
	redraft stage redraft.analysis.reference.site:write_site build/docs build/site
	@echo "build/site/index.html"

lighteval: $(LIGHTEVAL)/.ready ## install lighteval's environment

trl: $(TRL)/.ready ## install TRL's environment (docs/use-in-trl.md)

vllm-of-gpu: $(VLLM_OF_GPU)/.ready ## install the vLLM of ENV=gpu in its build for processors, for tests

lock: ## resolve envs/*/requirements.in again
	sh envs/lock.sh

clean: ## remove environments, Snakemake's records and mutants; keep results
	rm -rf $(VENV) $(LIGHTEVAL) $(TRL) $(VLLM_OF_GPU) .snakemake mutants

$(READY): $(wildcard envs/$(NAME)/*.lock) envs/punkt.txt envs/slurm.txt envs/gym.txt envs/install.sh pyproject.toml
	sh envs/install.sh $(VENV) $(NAME)

$(VENV)/.mutation: $(READY) envs/mutation.txt
	python -m pip install --quiet --disable-pip-version-check --no-deps -r envs/mutation.txt
	touch $@

$(VENV)/.docs: $(READY) envs/docs.txt
	python -m pip install --quiet --disable-pip-version-check --no-deps -r envs/docs.txt
	touch $@

$(LIGHTEVAL)/.ready: envs/lighteval/requirements.lock envs/punkt.txt envs/install.sh
	sh envs/install.sh $(LIGHTEVAL) lighteval

$(TRL)/.ready: envs/trl/requirements.lock envs/install.sh
	sh envs/install.sh $(TRL) trl

$(VLLM_OF_GPU)/.ready: envs/vllm-of-gpu/requirements.lock envs/install.sh
	sh envs/install.sh $(VLLM_OF_GPU) vllm-of-gpu
