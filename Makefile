# promptmill: everything a person runs here. `make` alone lists it.
# All paths are relative, so the repository may lie anywhere, under a name with blanks too.

PYTHON ?= python3
VENV := .venv
RUN := $(VENV)/bin/python
MODEL := .cache/models/SmolLM2-135M-Instruct

PACKAGES := $(VENV)/.packages
INSTALLED := $(VENV)/.installed
INTERPRETER := $(VENV)/.interpreter
CONVERTED := $(MODEL)/manifest.json
CODE := api engine ops queueing workers tests

.DEFAULT_GOAL := help
.PHONY: help demo test setup kernels model check fix lint types contracts spelling unit bench device-check soak soak-random bench-depth bench-peers bench-curve lock lock-check clean

help: ## List what can be made
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/\1|\2/p' Makefile | while IFS='|' read -r name text; do \
		printf '  make %-11s %s\n' "$$name" "$$text"; done

demo: setup ## Show the whole system at work on the real model, from nothing
	$(RUN) -m ops.cli demo

test: setup $(INTERPRETER) lint types contracts spelling ## Run all checks and the whole test suite
	$(RUN) -m pytest

setup: $(INSTALLED) kernels $(CONVERTED) ## Install into .venv, compile the kernels and get the model

kernels: $(INSTALLED) ## Compile the engine's kernels for this processor; without a compiler it does without
	@$(RUN) -m engine.build

model: $(CONVERTED) ## Fetch and convert the demonstration model (93 MB)

check: lint types contracts spelling unit ## Run all checks and the quick tests

fix: $(INSTALLED) ## Format the code and mend what can be mended
	$(RUN) -m ruff check --fix $(CODE)
	$(RUN) -m ruff format $(CODE)

lint: $(INSTALLED) ## Check format and style
	$(RUN) -m ruff format --check $(CODE)
	$(RUN) -m ruff check $(CODE)

types: $(INSTALLED) ## Check types
	$(RUN) -m mypy

contracts: $(INSTALLED) ## Check which part may import which
	$(VENV)/bin/lint-imports

spelling: $(INSTALLED) ## Check spelling
	$(RUN) -m codespell_lib .

unit: $(INTERPRETER) ## Run the quick tests
	$(RUN) -m pytest -m "not e2e and not real_model"

bench: setup ## Measure our engine beside transformers, on an idle machine
	$(RUN) -m ops.bench --model $(MODEL) quick

bench-depth: setup ## Measure step costs, latency under load, prefix cache and memory
	$(RUN) -m ops.bench --model $(MODEL) depth

bench-peers: setup ## Measure us beside every other engine (8 GB of packages; LLAMA=1: one more)
	$(RUN) -m ops.bench --model $(MODEL) peers $(if $(LLAMA),--with-llama)

bench-curve: setup ## Draw throughput against concurrency, ours and the fastest others' (LLAMA=1: one more)
	$(RUN) -m ops.bench --model $(MODEL) curve $(if $(LLAMA),--with-llama)

device-check: setup ## Check kernels, answers and speed on this machine's GPU
	$(RUN) -m ops.bench.device_check --model $(MODEL) --recorded --out .cache/device-check

soak: setup ## Run the fault tests at their full size, for about an hour
	PROMPTMILL_SOAK=1 $(RUN) -m pytest tests/faults tests/queueing -m "" --timeout 7200 --durations=0 --durations-min=5

soak-random: setup ## Let all faults strike at random, for PROMPTMILL_SOAK_MINUTES (120)
	PROMPTMILL_SOAK_MINUTES=$${PROMPTMILL_SOAK_MINUTES:-120} $(RUN) -m pytest tests/faults/test_random_soak.py -s

lock: $(INSTALLED) ## Remake the dependency locks
	. $(VENV)/bin/activate && ops/locks/lock.sh

lock-check: $(INSTALLED) ## Resolve the lock that is not installed here
	ops/locks/check.sh $(RUN)

clean: ## Remove all that make has made here
	rm -rf $(VENV) .cache .coverage .coverage.* .mypy_cache .pytest_cache .ruff_cache .hypothesis \
		.import_linter_cache *.egg-info build dist engine/kernels/native/*.so
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(PACKAGES): ops/install.sh ops/locks/cpu.lock ops/locks/cuda.lock
	PYTHON="$(PYTHON)" ops/install.sh
	@touch $@

# Triton interprets the kernels for a GPU; torch's CUDA build brings it along, its CPU build does not.
$(INTERPRETER): ops/locks/triton.lock $(INSTALLED)
	@echo "Installing ops/locks/triton.lock for tests: 0.2 GB to download, 0.7 GB on disk, less what is there."
	@$(RUN) -m pip install --quiet --disable-pip-version-check --require-hashes --requirement ops/locks/triton.lock
	@touch $@

# What the build says is of interest only when it fails.
$(INSTALLED): pyproject.toml $(PACKAGES)
	@$(RUN) -m pip install --no-deps --no-build-isolation --editable . > $(VENV)/build.log 2>&1 \
		|| { cat $(VENV)/build.log; exit 1; }
	@touch $@

$(CONVERTED): | $(INSTALLED)
	$(RUN) -m ops.demo_model --out $(MODEL)
