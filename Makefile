# Every target makes .venv by itself; a new user needs Python >= 3.11, make and a package index.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: setup demo test lint typecheck e2e bench manifests kind clean

setup: $(VENV)/.ready  ## install everything into .venv

$(VENV)/.ready: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "gpu-webhook needs Python 3.11 or later; set PYTHON=/path/to/python3")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	@touch $@

demo: setup  ## walk through the product on the lab; ONCE=1 checks every step and ends
	$(BIN)/gpu-webhook demo $(if $(ONCE),--once)

test: setup  ## the whole test suite, without the walk through a cluster and the benchmarks
	$(BIN)/python -m pytest $(PYTEST_ARGS)

lint: setup  ## ruff, import floors
	$(BIN)/ruff check webhook tests
	$(BIN)/ruff format --check webhook tests
	$(BIN)/lint-imports

typecheck: setup  ## mypy --strict
	$(BIN)/mypy

e2e: setup  ## the walk and the edge cases on the lab, or on the cluster that KUBECONFIG names
	$(BIN)/python -m pytest -m e2e tests/e2e $(PYTEST_ARGS)

bench: setup  ## measure and compare with the figures in docs/performance.md
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev,bench]'
	$(BIN)/python -m tests.bench.run

manifests: setup  ## write again what deploy/ generates from policies/
	$(BIN)/gpu-webhook manifests > deploy/base/webhook-configurations.yaml
	$(BIN)/gpu-webhook manifests --configmap > deploy/base/policy-configmap.yaml
	$(BIN)/gpu-webhook manifests --fail-closed > deploy/components/fail-closed/webhook-configurations.yaml
	$(BIN)/gpu-webhook manifests --fail-closed --configmap > deploy/components/fail-closed/policy-configmap.yaml

kind: setup  ## build, load and install into a kind cluster (needs Docker and kind), then the e2e suite
	docker build --file deploy/Dockerfile --tag gpu-webhook:kind .
	kind get clusters | grep -qx gpu-webhook || kind create cluster --name gpu-webhook
	kind load docker-image gpu-webhook:kind --name gpu-webhook
	kubectl --context kind-gpu-webhook apply -k deploy/overlays/kind
	kubectl --context kind-gpu-webhook label --overwrite node --all \
	  gpu.platform/pool=inference accelerator=nvidia-a100 topology.kubernetes.io/zone=local-a
	kubectl --context kind-gpu-webhook --namespace gpu-webhook rollout status deployment --timeout 180s
	mkdir -p .lab && kind get kubeconfig --name gpu-webhook > .lab/kind-kubeconfig
	KUBECONFIG=$(CURDIR)/.lab/kind-kubeconfig $(MAKE) e2e

clean:  ## remove everything that make and the program made here
	rm -rf $(VENV) build dist bench artifacts *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache .demo .lab
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
	find certs -mindepth 1 ! -name README.md -delete
