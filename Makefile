# `make reproduce` and `make test` need git, make and Python 3.11 or 3.12, and a package index; nothing else.

VENV := .venv
# cpu, or gpu where there are GPUs; each checkout has one of them.
ENV ?= cpu
READY := $(VENV)/.ready
PRESET ?= tiny
export PATH := $(CURDIR)/$(VENV)/bin:$(PATH)

.PHONY: reproduce test check bench mlflow docs lock clean

reproduce: $(READY)
	snakemake --config preset=$(PRESET)
	@echo "open results/$(PRESET)/report.html"

test: $(READY) check
	pytest -n 2 --dist loadfile

check: $(READY)
	ruff check
	ruff format --check
	mypy
	snakefmt --check Snakefile workflows

bench: $(READY)
	python -m benchmarks

mlflow: $(READY)
	mlflow ui --host 127.0.0.1 --backend-store-uri sqlite:///results/$(PRESET)/mlflow.db

docs: $(READY)
	redraft schema

lock:
	sh envs/lock.sh

clean:
	rm -rf $(VENV) .snakemake

$(READY): $(wildcard envs/$(ENV)/*.lock) envs/install.sh pyproject.toml
	sh envs/install.sh $(VENV) $(ENV)
