# Podgate's commands for developers. `make setup` once, then `make test` and `make lint`; `make cluster-test` needs a cluster.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

VENV := .venv
PYTHON := $(VENV)/bin/python

# The test bed: a command with `up`, `down`, `images`, `policy …`. Cluster tests speak with it besides the cluster itself.
export PODGATE_TEST_BED ?= $(abspath ../shared/cluster/cluster)
# Cluster tests that run at the same time: pods take seconds to start, so a few at a time wait together.
CLUSTER_WORKERS ?= 3
# What a cluster test may take: a launch, a run and its removal, several times over.
CLUSTER_TIMEOUT ?= 600

.PHONY: help setup test lint cluster-test cluster-test-all bench docs clean

help: ## show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | expand -t 20

setup: $(VENV)/.ready ## make .venv with everything that development needs

$(VENV)/.ready: pyproject.toml
	python3 -m venv $(VENV)
	$(PYTHON) -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	touch $@

test: setup ## unit, property and contract tests; no cluster
	$(PYTHON) -m pytest -m "not cluster" -n auto --dist loadfile tests

lint: setup ## ruff, format, mypy --strict, layers
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports

cluster-test: setup kubeconfig ## tests against the cluster of KUBECONFIG and the test bed, but the slow ones
	$(PYTHON) -m pytest -m "cluster and not slow and not policy" -n $(CLUSTER_WORKERS) --timeout $(CLUSTER_TIMEOUT) tests
	$(PYTHON) -m pytest -m "cluster and not slow and policy" --timeout $(CLUSTER_TIMEOUT) tests/cluster

cluster-test-all: setup kubeconfig ## all tests against the cluster
	$(PYTHON) -m pytest -m "cluster and not policy" -n $(CLUSTER_WORKERS) --timeout $$((3 * $(CLUSTER_TIMEOUT))) tests
	$(PYTHON) -m pytest -m "cluster and policy" --timeout $$((3 * $(CLUSTER_TIMEOUT))) tests/cluster

# On the test bed its own image is the trusted one; elsewhere PODGATE_TRUSTED_IMAGE names it. BENCH: more options.
bench: export PODGATE_TRUSTED_IMAGE ?= $(shell $(PODGATE_TEST_BED) images 2>/dev/null | sed -n 's/^python=//p')
bench: KUBECTL ?= $(if $(wildcard $(PODGATE_TEST_BED)),$(PODGATE_TEST_BED) kubectl,kubectl)
bench: setup kubeconfig ## install Podgate in the cluster and measure launches and transfers there
	$(VENV)/bin/podgate manifests | $(KUBECTL) apply -f - >/dev/null
	$(KUBECTL) -n "$${PODGATE_NAMESPACE:-podgate}" rollout status deployment/podgate-witness --timeout=120s
	$(PYTHON) -m benchmarks --kubectl "$(KUBECTL)" $(BENCH)

.PHONY: kubeconfig
kubeconfig:
	@test -n "$${KUBECONFIG:-}" || { echo 'Set KUBECONFIG to the cluster to test against (see README.md).' >&2; exit 2; }

docs: setup ## render what is rendered from the code: docs/errors.md, the tables of docs/operators.md and README.md
	$(PYTHON) docs/render.py

clean: ## remove what the tools left
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache .coverage
