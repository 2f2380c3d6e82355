# Every verb of the repository. `make` alone explains them.
PYTHON3 ?= python3
VENV    := .venv
PYTHON  := $(VENV)/bin/python
RUNTIME := $(VENV)/.stamp-runtime
ANALYTICS := $(VENV)/.stamp-analytics
DEV     := $(VENV)/.stamp-dev
# Programs that are built from Go modules, kept outside the checkout.
TOOLS   ?= $(HOME)/.cache/viewstamp-tools
KUSTOMIZE := $(TOOLS)/kustomize-v5.8.2/kustomize
HELM    := $(TOOLS)/helm-v3.22.0/helm
KUBERNETES := $(TOOLS)/kubernetes-v1.36.3
UP_PORT := 7400
SEED    ?= 1
COUNT   ?= 200
MINUTES ?= 60
SOAK_HOURS ?= 4
FRAMES  ?= 10000000
LOCK_CLIENT := $(VENV)/bin/uv pip compile --quiet pyproject.toml --universal --python-version 3.11 \
           --generate-hashes --no-strip-extras --no-emit-index-url --custom-compile-command "make lock"
LOCK    := $(LOCK_CLIENT) --extra build --extra server --extra archive

# What hangs ends, and fails: a test names itself first (faulthandler_timeout), a runner ends here.
LIMIT   := timeout --foreground --verbose --kill-after=30s
# By name, so that the output of CI says which test did not come back. The scheduler of pytest-xdist
# loses tests with a process that ended, and waits for them: so the first such end is that of the run.
SPREAD  := -n 2 --dist loadfile --max-worker-restart 0 $(if $(CI),-v)
LONG    := $(PYTHON) -m pytest -m "long and not exhaustive" -o faulthandler_timeout=600 --durations=10

# The tests of the packages whose branches are counted. Counting makes others slow: the simulators up
# to three times. These have processes of their own, since thousands of tests before them slow them down, too.
# Tests of costs count operations of the largest states, and leave no branch to themselves.
SERVICE_TESTS := $(addprefix tests/services/,consumer_groups runtime streams users test_changes_fold.py)
PURE_TESTS := tests/composite tests/coordinator/journal/test_superblock.py tests/coordinator/journal/test_ring_journal.py \
           tests/coordinator/journal/test_slot_bytes.py tests/coordinator/mux tests/coordinator/vsr $(SERVICE_TESTS) \
           tests/viewstamp/format tests/viewstamp/machine tests/viewstamp/snapshots
TRANSPORT_TESTS := tests/coordinator/base tests/coordinator/stages tests/coordinator/peers tests/coordinator/gateway \
	tests/services/runtime tests/viewstamp/client tests/viewstamp/wire tests/processes
APART   := --ignore tests/analytics --ignore tests/testkit $(addprefix --ignore ,$(PURE_TESTS))

# The demonstration ends with a report that Spark makes; DEMO_ANALYTICS=0 leaves Spark out.
DEMO_ANALYTICS ?= 1
DEMO    := $(if $(filter 0,$(DEMO_ANALYTICS)),$(RUNTIME),$(ANALYTICS))

export DEMO_ANALYTICS
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.DEFAULT_GOAL := help
.PHONY: help image image-client image-analytics preflight preflight-analytics preflight-dev preflight-tests up install-analytics demo test test-long test-exhaustive test-pages test-replicas test-transports test-foreign test-deploy test-image test-kubernetes kubernetes older-image images manifests lint format generate docs \
        lock simulate simulate-coverage simulate-guards model model-long model-guards model-traces crash-test cluster-test soak torture abuse fuzz-frames limits benchmark benchmark-snapshots benchmark-failover \
        benchmark-analytics clean

help: ## Explain the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 22

preflight: ## Check this machine for what `up` and `demo` need; `preflight-tests` for what `test` needs
	@$(PYTHON3) tools/preflight.py runtime

preflight-analytics:
	@$(PYTHON3) tools/preflight.py analytics

preflight-dev:
	@$(PYTHON3) tools/preflight.py dev

$(RUNTIME): requirements.lock pyproject.toml | preflight
	$(PYTHON3) -m venv $(VENV)
	$(PYTHON) -m pip install --quiet --require-hashes -r requirements.lock
	$(PYTHON) -m pip install --quiet --no-deps --no-build-isolation --editable .
	@touch $@

$(ANALYTICS): requirements-analytics.lock pyproject.toml | preflight-analytics
	$(PYTHON3) -m venv $(VENV)
	$(PYTHON) -m pip install --quiet --require-hashes -r requirements-analytics.lock
	$(PYTHON) -m pip install --quiet --no-deps --no-build-isolation --editable .
	@touch $@

$(DEV): requirements-dev.lock pyproject.toml | preflight-dev
	$(PYTHON3) -m venv $(VENV)
	$(PYTHON) -m pip install --quiet --require-hashes -r requirements-dev.lock
	$(PYTHON) -m pip install --quiet --no-deps --no-build-isolation --editable .
	@touch $@

up: $(RUNTIME) ## Start a cluster on this machine: UP_PORT=port
	@$(PYTHON3) tools/preflight.py runtime --port $(UP_PORT)
	$(VENV)/bin/viewstamp up --listen 127.0.0.1:$(UP_PORT)

install-analytics: $(ANALYTICS) ## Install the analysis and its libraries into .venv

demo: $(DEMO) ## Run the guided demonstration, with a report at its end
	$(PYTHON) examples/demo.py
	$(PYTHON) -m examples.broker.run

# Here and not in `preflight-dev`: to lint needs no browser.
preflight-tests:
	@$(PYTHON3) tools/preflight.py runtime --tests

test: preflight-tests lint ## Lint, run the tests, hold the coverage gate
	CI=true $(LIMIT) 10m $(PYTHON) -m pytest $(SPREAD) $(PURE_TESTS) --cov --cov-report=json:.coverage.json
	$(PYTHON) tools/coverage_gate.py .coverage.json
	CI=true $(LIMIT) 15m $(PYTHON) -m pytest $(SPREAD) $(APART)
	CI=true $(LIMIT) 10m $(PYTHON) -m pytest $(SPREAD) tests/testkit
	CI=true $(LIMIT) 10m $(PYTHON) -m pytest $(SPREAD) tests/analytics

# Replicas and hostile callers have both cores to themselves: what callers see is judged.
test-long: $(DEV) ## Run the tests that take minutes, and a short crash test
	CI=true $(LIMIT) 35m $(LONG) $(SPREAD) --ignore tests/analytics --ignore tests/replicas --ignore tests/abuse
	CI=true $(LIMIT) 35m $(LONG) tests/replicas tests/abuse
	CI=true $(LIMIT) 20m $(LONG) $(SPREAD) tests/analytics
	$(LIMIT) 5m $(PYTHON) tests/crash/crash_test.py --short

test-pages: $(DEV) ## Run all commands that README, CONTRIBUTING and docs show: about 20 minutes
	CI=true $(LIMIT) 60m $(PYTHON) -m pytest -m "" -o faulthandler_timeout=1200 --durations=10 tests/documentation

test-replicas: $(DEV) ## Run all tests of several replicas as processes, and of hostile callers: about 45 minutes
	CI=true $(LIMIT) 120m $(PYTHON) -m pytest -m "long or exhaustive" -o faulthandler_timeout=900 --durations=10 tests/replicas tests/abuse

test-transports: $(DEV) ## Run tests and the processes that they start on the gRPC library: about 15 minutes
	CI=true VIEWSTAMP_TRANSPORT=grpcio $(LIMIT) 30m $(PYTHON) -m pytest $(SPREAD) $(TRANSPORT_TESTS)

test-foreign: $(DEV) ## Have clients and servers in Go, JavaScript and Java, h2spec and nghttp2 judge our transport; needs their tools
	CI=true $(LIMIT) 30m $(PYTHON) -m pytest -m foreign -o faulthandler_timeout=600 tests/foreign

test-deploy: $(DEV) $(KUSTOMIZE) $(HELM) ## Have kustomize and helm judge the manifests; builds them with Go, which takes 3 minutes once
	CI=true KUSTOMIZE=$(KUSTOMIZE) HELM=$(HELM) $(LIMIT) 20m $(PYTHON) -m pytest $(SPREAD) -m deploy tests/deploy

# Which base: an image, by its digest, or `debootstrap`. The default is the Dockerfile's.
BASE    ?=
IMAGE   := $(PYTHON) -m tools.image $(if $(BASE),--base $(BASE))

images: $(DEV) ## Build the three images, scan them and list what they are made of: BASE=debootstrap
	$(IMAGE)

image image-client image-analytics: $(DEV)
	$(IMAGE) $(subst image,viewstamp,$@)

test-image: $(DEV) ## Build the images on debootstrap's base, and run them by podman; needs root, buildah, podman, runc
	$(PYTHON) -m tools.image --base debootstrap
	CI=true $(LIMIT) 60m $(PYTHON) -m pytest -m image -o faulthandler_timeout=900 tests/deploy

# Which revision the replicas are downgraded to, and the image made of it.
OLDER   ?= HEAD~5
OLDER_IMAGE := $(CURDIR)/var/older-image

kubernetes: $(DEV) ## Build the programs of a Kubernetes with Go: about 15 minutes, once
	$(PYTHON) -m testkit.kubernetes.build $(KUBERNETES)

# Always anew: an archive does not say of which revision it is.
older-image: $(DEV)
	rm -rf $(OLDER_IMAGE)
	git worktree prune
	git worktree add --detach $(OLDER_IMAGE)/source $(OLDER)
	cd $(OLDER_IMAGE)/source && $(CURDIR)/$(PYTHON) -m tools.image --base debootstrap --output $(OLDER_IMAGE) viewstamp
	git worktree remove --force $(OLDER_IMAGE)/source

test-kubernetes: kubernetes older-image ## Run the manifests on a Kubernetes of three nodes; needs root, OLDER=revision
	$(PYTHON) -m tools.image --base debootstrap
	CI=true KUBERNETES_PROGRAMS=$(KUBERNETES) KUBERNETES_OLDER_IMAGE=$(OLDER_IMAGE)/viewstamp.tar \
		$(LIMIT) 60m $(PYTHON) -m pytest -m kubernetes -o faulthandler_timeout=1800 --capture=no tests/kubernetes

$(KUSTOMIZE):
	GOBIN=$(@D) GOFLAGS=-mod=mod go install sigs.k8s.io/kustomize/kustomize/v5@v5.8.2

$(HELM):
	GOBIN=$(@D) GOFLAGS=-mod=mod go install helm.sh/helm/v3/cmd/helm@v3.22.0

test-exhaustive: $(DEV) ## Run all cases of what the other tests sample, and what takes too long for them: about 2 hours
	CI=true $(LIMIT) 240m $(PYTHON) -m pytest -m exhaustive -o faulthandler_timeout=900 --durations=10

lint: $(DEV) ## Check format, style, types, protos and generated stubs
	$(PYTHON) -m ruff format --check .
	$(PYTHON) -m ruff check .
	$(PYTHON) -m mypy .
	$(VENV)/bin/buf lint
	$(PYTHON) tools/generate.py --check

format: $(DEV) ## Bring code and protos into the house format
	$(PYTHON) -m ruff format .
	$(PYTHON) -m ruff check --fix .
	$(VENV)/bin/buf format --write

generate: $(DEV) ## Regenerate viewstamp/api from protos
	$(PYTHON) tools/generate.py

manifests: $(DEV) $(KUSTOMIZE) ## Render deploy/ again, and make the Helm chart from it
	$(PYTHON) -m tools.manifests --kustomize $(KUSTOMIZE)

docs: $(DEV) ## Build the documentation site into var/site, with strict links
	NO_MKDOCS_2_WARNING=1 PYTHONPATH=. $(PYTHON) -m mkdocs build --strict

lock: $(DEV) ## Resolve the dependencies again
	$(LOCK) --upgrade --output-file requirements.lock
	$(LOCK_CLIENT) --constraint requirements.lock --output-file requirements-client.lock
	$(LOCK) --upgrade --extra analytics --extra dev --constraint requirements.lock \
	    --output-file requirements-dev.lock
	$(LOCK) --extra analytics --constraint requirements-dev.lock \
	    --output-file requirements-analytics.lock

simulate: $(DEV) ## Run the shipped programs in virtual time under faults: SEED=first COUNT=how many, resumable
	$(PYTHON) -m testkit.world.campaign --seed $(SEED) --count $(COUNT) --processes 2 \
	    --state .simulation.jsonl --figures $(or $(FIGURES),.simulation.md) \
	    $(if $(FIGURES),--ledger benchmarks/results/simulation.jsonl)

simulate-guards: $(DEV) ## Take guards out of the shipped programs, one by one: seeds have to find it
	$(PYTHON) -m testkit.world.guards --processes 2 --state .guards.jsonl --table $(or $(FIGURES),.guards.md)

simulate-coverage: $(DEV) ## Tell which lines of the coordinator no seed runs: SEED=first COUNT=how many, resumable
	$(PYTHON) -m testkit.world.coverage --seed $(SEED) --count $(COUNT) --processes 2 \
	    --state .simulation-coverage $(if $(FIGURES),--markdown $(FIGURES))

model: $(DEV) ## Check the TLA+ specification of the protocol: every state of small clusters
	$(PYTHON) -m testkit.model --table docs/tla/README.md

model-long: $(DEV) ## Let TLC take random steps with four and five replicas, resumable: MINUTES=60
	$(PYTHON) -m testkit.model.long --minutes $(MINUTES) --results .model.jsonl \
	    --table docs/tla/README.md

model-guards: $(DEV) ## Take the guards out of the TLA+ specification, one by one: TLC has to find it
	$(PYTHON) -m testkit.model.guards --table docs/tla/README.md

model-traces: $(DEV) ## Check recorded runs against the specification: simulated ones and real processes: SEED=first
	$(PYTHON) -m testkit.model.traces --seed $(SEED)

crash-test: $(DEV) ## Kill processes of a loaded cluster and check what it promised
	$(PYTHON) tests/crash/crash_test.py

cluster-test: $(DEV) ## Kill the primary of three loaded replicas, and judge what callers saw: CLUSTER=flags
	PYTHONPATH=. $(PYTHON) tests/replicas/cluster_test.py $(CLUSTER)

soak: $(DEV) ## Load three replicas for SOAK_HOURS, 4 by default, with a kill a minute: what grows, what is lost; resumable: SOAK=flags
	$(PYTHON) -m testkit.soak --hours $(SOAK_HOURS) --record .soak.json $(SOAK)

torture: $(DEV) ## Hurt three replicas for an hour or 1,000 kills, and judge them, resumable: TORTURE=flags
	$(PYTHON) -m testkit.torture --figures .torture.jsonl $(TORTURE)

abuse: $(DEV) ## Abuse three replicas with a million hostile calls beside an honest caller: ABUSE=flags
	PYTHONPATH=. $(PYTHON) -m tests.abuse.campaign --json benchmarks/results/abuse.json --tables docs/security.md $(ABUSE)

fuzz-frames: $(DEV) ## Hold random conversations of two ends of our HTTP/2, partly with changed bytes: FRAMES=how many
	$(PYTHON) -m testkit.http2 --frames $(FRAMES)

limits: $(DEV) ## Measure what each RPC costs at worst, and write docs/limits.md
	$(PYTHON) -m benchmarks.limits

benchmark: $(DEV) ## Measure commands against the peers
	$(PYTHON) -m benchmarks.commands

benchmark-snapshots: $(DEV) ## Measure snapshots of a million partitions, beside etcd's
	$(PYTHON) -m benchmarks.snapshots

benchmark-failover: $(DEV) ## Measure how long nobody is answered when the primary dies, beside etcd
	$(PYTHON) -m benchmarks.failover

benchmark-analytics: $(DEV) ## Measure the analysis of 1, 3 and 10 million spans, beside duckdb
	$(PYTHON) -m benchmarks.analytics

clean: ## Remove the environment, caches and results
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .hypothesis .simulation.jsonl .simulation.md .simulation-coverage .guards.jsonl .guards.md .torture.jsonl .soak.json \
	    .model.jsonl .coverage .coverage.* htmlcov
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
