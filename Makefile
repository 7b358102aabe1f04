# `make demo` and `make test` set everything up by themselves; either may be the first command typed.
.DEFAULT_GOAL := help
SHELL := /bin/bash
PY := .venv/bin/python
# Where it is set, as images like to, every process compiles all packages anew: twice the time for each command.
unexport PYTHONDONTWRITEBYTECODE
SOURCES := $(wildcard tidegate tidegate_kernel consumers inbox dlq projections examples bench tests scripts)
# A folder without a module would stop mypy.
TYPED := $(foreach folder,$(SOURCES),$(if $(shell find $(folder) -name '*.py' -print -quit),$(folder)))

.PHONY: help setup demo demo-dlq demo-jobs test check static up down status clean bench lock sabotage chaos rehearse-rollout chart

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: # reuses what is there
	@scripts/setup

demo: setup ## Start the servers, run the example shop's main job (the servers stay up)
	@scripts/with-stack $(PY) -m examples.shop.demo

demo-dlq: setup ## The same shop: a bad release, 300 dead orders, their replay killed in the middle and resumed
	@scripts/with-stack $(PY) -m examples.shop.demo_dlq

demo-jobs: setup ## All five kinds of jobs with three schedulers: one killed, clocks changed, runs contended and resumed
	@scripts/with-stack $(PY) -m examples.shop.demo_jobs

# Files of tests run side by side, on the same servers; `make test WORKERS=0` runs one test after the other. On two cores
# three are quicker than two, because tests wait for leases, brokers and outages.
WORKERS ?= 3
SIDE_BY_SIDE := -n $(WORKERS) --dist loadfile --no-loadscope-reorder

test: static ## All checks and all tests; ends the servers it started
	@scripts/setup --test-programs
	$(PY) scripts/all_tests.py --memory $(SIDE_BY_SIDE)

# `make check test` runs these among all tests: no test twice in one build.
check: static ## Format, lint, types, imports, unit and architecture tests; needs no server
	$(if $(filter test,$(MAKECMDGOALS)),,$(PY) scripts/all_tests.py $(SIDE_BY_SIDE) $(wildcard tests/unit tests/architecture))

static: setup
	.venv/bin/ruff format --check $(SOURCES)
	.venv/bin/ruff check $(SOURCES)
	.venv/bin/mypy $(TYPED)
	.venv/bin/lint-imports --no-logo

up: setup ## Start Kafka, Postgres, Elasticsearch and ClickHouse on this machine
	@$(PY) -m tidegate.stack up

down: ## Stop them; their data stays
	@if [ -x $(PY) ]; then $(PY) -m tidegate.stack down; else echo "nothing is set up yet; try 'make up'"; fi

status: ## Ask every server
	@if [ -x $(PY) ]; then $(PY) -m tidegate.stack status; else echo "nothing is set up yet; try 'make up'"; fi

bench: setup ## Measure against the real servers
	@scripts/with-stack $(PY) -m bench

CHAOS_SECONDS ?= 300
CHAOS_SEED ?= 7
chaos: setup ## Strike real servers and workers for CHAOS_SECONDS, then compare everything with what was sent
	@$(PY) -m tests.chaos --seconds $(CHAOS_SECONDS) --seed $(CHAOS_SEED)

rehearse-rollout: setup ## Roll the chart's workloads under load, processes for pods: gaps, repeats, doubled effects
	@scripts/chart-tools && scripts/with-stack $(PY) -m tests.rollout

chart: setup ## Lint, render and test the Helm chart; on a real API server where ../shared/kube has one
	@scripts/chart-tools
	$(PY) -m pytest $(SIDE_BY_SIDE) tests/chart

sabotage: setup ## Prove that the tests can fail: each patch in tests/sabotage must turn the test it names red
	@scripts/with-stack $(PY) scripts/sabotage.py

lock: setup ## Lock the dependencies again, with hashes
	@scripts/lock

clean: ## Stop the servers; remove their data, caches and the environment
	@if [ -x $(PY) ]; then $(PY) -m tidegate.stack down --wipe; fi
	rm -rf .venv .state .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache dist build
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
