# Every target is one that CI runs too. `make` alone lists them.
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: rules release help setup setup-dev fetch objects standins standins-demo as-root demo run clean docs site dashboard-images bench image image-check lock fresh-check test-all manifests
.PHONY: check check-lint check-words check-format check-types check-bpf check-rules test test-unit test-bpf test-e2e test-verbs-providers test-dashboards test-gpu test-nccl-wheels test-rdma test-real test-kernels test-drivers test-backends fault-table

# Debian keeps depmod and debootstrap where users without root do not look.
export PATH := $(if $(PATH),$(PATH):)/usr/sbin:/usr/bin:/sbin:/bin
PYTHON ?= python3
export PYTHON
VENV := .venv/bin
ARGS ?=
# The tests start the exporter some hundred times, and each worker of pytest reads hundreds of files: compiled once.
unexport PYTHONDONTWRITEBYTECODE
JOBS := -j$(shell PATH="$(PATH)"; nproc)
PYTEST := $(VENV)/python -m pytest $(ARGS)
# Tests run side by side, but whole scenes one after the other: tests/conftest.py has how. They wait as long as they compute.
WORKERS := -n $(shell PATH="$(PATH)"; n=$$(nproc); echo $$((n < 8 ? n + 2 : 10)))
BPF_SOURCES = $(wildcard bpf/*.[ch] bpf/*/*.[ch])
RULES = $(filter-out %.test.yaml,$(wildcard alerts/*.yaml))
RULES_FOLDER = build/alerts
RELEASE_FOLDER = build/release
VALUES = deploy/rules.yaml
RULES_CHECKED = $(RULES:alerts/%.yaml=build/rules/%)

help: ## this list
	@sed -n 's/^\([a-z0-9-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | while IFS="$$(printf '\t')" read -r name what; do printf '  make %-12s %s\n' "$$name" "$$what"; done

# Setup is quick when nothing is missing: each stamp is older only than what decides what gets installed.
.venv/.base: pyproject.toml setup.py deploy/setup.sh
	@deploy/setup.sh base
.venv/.dev: pyproject.toml setup.py deploy/setup.sh
	@deploy/setup.sh dev
.venv/.rdma: pyproject.toml setup.py deploy/setup.sh
	@deploy/setup.sh rdma

setup: .venv/.base objects ## packages, .venv and BPF objects, as far as they are missing
setup-dev: .venv/.dev objects standins

objects: | .venv/.base ## compile the BPF programs for x86-64 and arm64
	@$(MAKE) -s $(JOBS) -C bpf
standins: | .venv/.dev
	@$(MAKE) -s $(JOBS) -C tests/standins
standins-demo: | .venv/.base
	@$(MAKE) -s $(JOBS) -C tests/standins demo

as-root:
	@[ "$$(id -u)" -eq 0 ] || { echo 'demo: attaching probes needs root: run `sudo make demo`' >&2; exit 1; }
demo: as-root setup standins-demo ## the exporter and a synthetic training job, live in this terminal (ARGS="--seconds 30"; --torch: PyTorch's, 3 GB once)
	@$(VENV)/python -m deploy.demo $(ARGS)

run: setup ## the exporter on this node (ARGS="--log.level=debug")
	@$(VENV)/accel-exporter $(ARGS)

check: check-lint check-words check-format check-types check-bpf check-rules ## lint, types, formatting and rules (-k: all of them)
check-lint: .venv/.dev
	$(VENV)/ruff check
check-words: .venv/.dev
	$(VENV)/python -m tests.check_words
check-format: .venv/.dev
	$(VENV)/ruff format --check
check-types: .venv/.dev
	$(VENV)/mypy --strict exporter tools
check-bpf: .venv/.dev
	$(if $(BPF_SOURCES),$(VENV)/clang-format --dry-run -Werror $(BPF_SOURCES))
check-rules: .venv/.dev
	$(if $(RULES),@$(MAKE) -s $(JOBS) --output-sync $(RULES_CHECKED))
# A file of rules is evaluated against its tests when one of both has changed since they passed.
build/rules/%: alerts/%.yaml alerts/%.test.yaml
	promtool check rules $<
	GOGC=400 promtool test rules alerts/$*.test.yaml
	@mkdir -p $(@D) && touch $@

test: setup-dev ## every test that takes seconds and needs no GPU; lists what was skipped and why
	$(PYTEST) $(WORKERS) --no-loadscope-reorder tests/e2e tests/bpf tests/program tests/drivers/test_ipmi_network.py tests/unit
# `test` last: pytest's own count is the last thing printed. Each of them runs although one before it failed, with -k.
test-all: test-real test-rdma test-kernels test-drivers test-verbs-providers test-backends test-dashboards image-check fresh-check test ## every test that this machine can run, also in a bare root (an hour)
test-unit: setup-dev
	$(PYTEST) $(WORKERS) tests/unit
test-bpf: setup-dev ## probes against stand-in libraries (root, BPF)
	$(PYTEST) tests/bpf
test-verbs-providers: setup-dev ## finding the functions of every RDMA provider of Debian (its packages; SUITES="bookworm trixie")
	$(PYTEST) tests/providers
test-dashboards: setup-dev ## every query and picture of the dashboards, on a node where everything happens (minutes; root, BPF)
	$(PYTEST) tests/dashboards
test-e2e: setup-dev ## the whole program (root, BPF)
	$(PYTEST) tests/e2e tests/program

fault-table: setup-dev ## every cause of a stopped job, injected: does its alert fire? (root, BPF)
	@$(VENV)/python -m tests.e2e.fault_table

test-rdma: setup-dev .venv/.rdma ## RDMA for real: two virtual machines with Debian's kernel and soft-RoCE (minutes)
	@tests/rdma/kernel.sh
	REQUIRE_RDMA=1 $(PYTEST) tests/rdma
test-kernels: setup-dev .venv/.rdma ## the probes on the kernels of Debian's releases, for x86-64 and arm64, and on many processors, in virtual machines (half an hour)
	@tests/rdma/kernel.sh
	REQUIRE_KERNELS=1 $(PYTEST) tests/kernels
test-drivers: setup-dev .venv/.rdma ## IPMI and NVMe through Linux' own drivers, in a virtual machine (minutes)
	@tests/rdma/kernel.sh
	REQUIRE_RDMA=1 $(PYTEST) tests/drivers
test-backends: setup-dev ## Prometheus 3, VictoriaMetrics, Phoenix and MLflow take what the exporter gives (2 GB of downloads)
	$(PYTEST) tests/backends
test-nccl-wheels: setup-dev ## where a dozen releases of NCCL keep their communicators, and how they fail without a driver (3 GB of downloads; root, BPF)
	NCCL_WHEELS=all $(PYTEST) tests/program/nccl tests/bpf/test_nccl_real.py

# CI does this while it checks what needs a processor.
fetch: setup-dev .venv/.rdma ## what test-rdma and test-real download, ahead of them (the wheels of PyTorch, vLLM and SGLang not)
	@tests/rdma/kernel.sh
	@$(VENV)/python -m tests.real.releases

# In ~/.cache/accel-exporter/real, for all checkouts: a release takes 6 GB there.
test-real: setup-dev ## the wheels of PyTorch, JAX, NCCL, Numba, SGLang and others on a soft GPU, call by call, and vLLM on processors; writes docs/real-software.md (15 GB of downloads, 2 GB with ARGS="-k 'not torch and not vllm and not sglang'"; root, BPF)
	REQUIRE_WHEELS=1 $(PYTEST) tests/real

bench: setup-dev ## the budgets, measured on this machine
	@$(VENV)/python -m bench $(ARGS)

# On a GPU machine nothing is installed or compiled: tests/gpu/README.md lists what is carried there.
test-gpu: $(if $(findstring dry-run,$(ARGS)),setup-dev) ## what only a GPU can show (ARGS=--dry-run: with stand-ins)
	@$(or $(wildcard $(VENV)/python),$(PYTHON)) -m tests.gpu $(ARGS)

docs: .venv/.dev ## write the pages of docs/ that the declarations in code give
	@mkdir -p build
	@for page in metrics series-profiles flags xid dcgm-fields faults alerts dashboards; do $(VENV)/python -m tools.docs $$page >build/$$page.md && mv build/$$page.md docs/ || exit 1; done
	@$(VENV)/python -m tests.evidence >build/evidence.md && mv build/evidence.md docs/

site: .venv/.dev ## docs/ as a site, in build/site; a broken link is an error
	@NO_MKDOCS_2_WARNING=1 $(VENV)/mkdocs build --strict --quiet && echo "build/site/index.html"

rules: .venv/.dev ## alerts/ as one file, build/alerts/accel-exporter.yaml, with what VALUES=deploy/rules.yaml changes and links by RUNBOOKS=URL and GRAFANA=URL
	@RUNBOOKS="$(RUNBOOKS)" RUNBOOK_SUFFIX="$(RUNBOOK_SUFFIX)" GRAFANA="$(GRAFANA)" deploy/rules.sh $(RULES_FOLDER)/accel-exporter.yaml $(VALUES)

manifests: .venv/.dev ## write deploy/kubernetes/ from the chart
	@deploy/manifests.sh deploy/kubernetes

release: .venv/.dev ## rules, chart, manifests and site of VERSION=1.0.0, in build/release, with links to RUNBOOKS=URL (docs/release.md)
	@VERSION="$(VERSION)" RUNBOOKS="$(RUNBOOKS)" RUNBOOK_SUFFIX="$(RUNBOOK_SUFFIX)" GRAFANA="$(GRAFANA)" deploy/release.sh $(RELEASE_FOLDER)

dashboard-images: setup-dev ## draw docs/images/dashboard-*.png from a node where everything happens (root, BPF)
	@$(VENV)/python -m tests.e2e.scene docs/images

image: ## a container image, with docker, podman or buildah
	@deploy/image/build.sh
image-check: ## build the image on a base made here, without a registry, and run the exporter from it
	@deploy/setup.sh image
	@deploy/image/check.sh

fresh-check: ## this page's commands in a root with nothing installed (ARGS="--release trixie --only demo,unit")
	@deploy/setup.sh root
	@deploy/fresh/check.sh $(ARGS)

lock: ## write deploy/image/requirements.txt: the versions and hashes that the image is built from
	@deploy/image/lock.sh

clean: ## remove what was built; keeps .venv
	rm -rf build dist *.egg-info exporter/bpf/objects tests/standins/build tests/softgpu/build .mypy_cache .ruff_cache .pytest_cache .hypothesis
