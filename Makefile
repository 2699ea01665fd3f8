# Start with `make demo` and `make test`. Each target does its own setup.
SHELL := /bin/bash
PYTHON ?= python3
UV_VERSION := 0.13.8
KAFKA_VERSION := 4.3.1
VENV := .venv
BIN := $(VENV)/bin
JARS := .cache/kafka-$(KAFKA_VERSION)
OLD_KAFKA_VERSION := 2.1.1
OLD_JARS := .cache/kafka-$(OLD_KAFKA_VERSION)
LOCK_STAMP := $(VENV)/.locked
SPARK43 := .venv-spark43
BUILD_STAMP := $(VENV)/.built
KERNEL_SOURCES := pyproject.toml setup.py $(shell find src -name "*.pyx" -o -name "*.pxd")

.PHONY: help setup demo test test-all test-slice record test-spark43 simulate bench cards lint audit format rules soak lock jars java dist clean

help:  ## list the targets
	@awk -F':.*## ' '/^[a-z0-9-]+:.*## /{printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(BUILD_STAMP)  ## create .venv with the locked dependencies and build the compiled modules

$(BIN)/uv:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Fenceline needs Python 3.11 or newer, and $(PYTHON) is older. Set PYTHON=python3.x"; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) || { echo "The venv module is missing: install the python3-venv package"; exit 1; }
	@$(BIN)/python -m pip install --quiet "uv==$(UV_VERSION)"

$(LOCK_STAMP): requirements.lock | $(BIN)/uv
	@echo "Installing locked dependencies ..."
	@$(BIN)/uv pip sync --quiet --compile-bytecode --python $(BIN)/python --require-hashes requirements.lock
	@touch $@

$(BUILD_STAMP): $(LOCK_STAMP) $(KERNEL_SOURCES)
	@echo "Building Fenceline ..."
	@$(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps --no-build-isolation --editable .
	@$(BIN)/python -m compileall -q src
	@touch $@

java:  ## check for Java 17+; install a headless JRE if running as root on Debian or Ubuntu
	@bash tools/ensure_java.sh

jars: $(JARS)/.complete $(OLD_JARS)/.complete  ## download the jars of Apache Kafka and Spark's Kafka connector, for tests and benchmarks

$(JARS)/.complete: tools/kafka/pom.xml tools/kafka/connector.xml tools/kafka/streams.xml
	@bash tools/fetch_jars.sh $(KAFKA_VERSION) $(JARS)

$(OLD_JARS)/.complete: tools/kafka/old.xml
	@bash tools/fetch_jars.sh $(OLD_KAFKA_VERSION) $(OLD_JARS) old

demo: setup java  ## stream flights through three brokers and Spark, with a data loss that is reported and repaired
	@# Spark's own Kafka connector runs for comparison; without its jars and Maven, the demo skips it.
	@ls $(JARS)/connector/*.jar >/dev/null 2>&1 || ! command -v mvn >/dev/null || timeout 120 bash tools/fetch_jars.sh $(KAFKA_VERSION) $(JARS) connector || true
	@$(BIN)/fenceline demo

SIMULATION := $(BIN)/python -m fenceline.testing.simulation all
CLUSTERS := $(BIN)/python -m fenceline.testing.simulation brokers
OPERATIONS := $(BIN)/python -m fenceline.testing.simulation operations
MEMBERS := $(BIN)/python -m fenceline.testing.simulation members
RIGHTS := $(BIN)/python -m fenceline.testing.simulation rights
FREEZES := $(BIN)/python -m fenceline.testing.simulation freezes
RESTING := $(BIN)/python -m fenceline.testing.simulation resting
APPLICATION := $(BIN)/python -m fenceline.testing.applications examples/orders/simulated.py
TRANSACTIONS := $(BIN)/python -m fenceline.testing.simulation transactions
CORPUS := tests/simulation/corpus.txt

# `make test ROOM=log` runs the tests in tests/log that are neither long nor need Apache Kafka or Spark.
ROOM ?=
PYTEST := $(BIN)/python -m pytest
# Three workers on two cores: a worker that waits for a JVM or another process uses no CPU.
WORKERS ?= 3
REPORTS := .cache/test-reports
TEST_TOOLS := bash tools/ensure_test_tools.sh $(KAFKA_VERSION) $(JARS) $(OLD_KAFKA_VERSION) $(OLD_JARS)
SLOWEST := $(BIN)/python -m tests.slices --slowest
PURE_PYTHON_TESTS := tests/log tests/node/test_data_path.py tests/node/api/produce/test_plain_produce.py

ifneq ($(ROOM),)
test: setup
	@test -d tests/$(ROOM) || { echo "There is no tests/$(ROOM). Choose one of: $$(cd tests && ls -d */ | tr -d '/' | grep -v __ | tr '\n' ' ')"; exit 1; }
	@$(PYTEST) -n 2 -q -m "not kafka and not long and not spark" tests/$(ROOM)
else
test: setup java  ## run the tests of every commit, with recorded answers of Apache Kafka; ROOM=log: those of one package
	@mkdir -p $(REPORTS)
	@$(PYTEST) -n $(WORKERS) -m "not kafka and not long" --junitxml=$(REPORTS)/test.xml
	@echo "Simulating quorums and controllers, 300 seeds ..."
	@$(SIMULATION) --seeds 0..300 --workers 2 --progress 100
	@echo "Simulating clusters with data, 300 seeds ..."
	@$(CLUSTERS) --seeds 0..300 --workers 2 --progress 100
	@echo "Simulating clusters with operators, 100 seeds ..."
	@$(OPERATIONS) --seeds 0..100 --workers 2 --progress 50
	@echo "Simulating transactions, 100 seeds ..."
	@$(TRANSACTIONS) --seeds 0..100 --workers 2 --progress 50
	@echo "Simulating an application, 200 seeds ..."
	@$(APPLICATION) --seeds 0..200 --workers 2 --progress 100
	@echo "Testing logs and the data path without the compiled modules ..."
	@FENCELINE_PURE_PYTHON=1 $(PYTEST) -n 2 -q -m "not kafka and not long" $(PURE_PYTHON_TESTS)
endif

test-all: setup java  ## run all tests, with live Apache Kafka, and 2,000 seeds of each simulation (about an hour)
	@$(TEST_TOOLS)
	@mkdir -p $(REPORTS)
	@$(PYTEST) -n $(WORKERS) --answers=live --junitxml=$(REPORTS)/test.xml
	@FENCELINE_PURE_PYTHON=1 $(PYTEST) -n 2 -q -m "not kafka" $(PURE_PYTHON_TESTS)
	@$(MAKE) --no-print-directory simulate
	@$(SLOWEST)

test-slice: setup java  ## run the part of `make test-all` that this commit chooses (what `make test` does not run)
	@$(TEST_TOOLS)
	@mkdir -p $(REPORTS)
	@slice=$$($(BIN)/python -m tests.slices); seeds=$$($(BIN)/python -m tests.slices --seeds 300 2000); \
	echo "Slice $$slice of the long tests, and seeds $$seeds ..."; \
	$(PYTEST) -n $(WORKERS) --answers=live --slice=$$slice --junitxml=$(REPORTS)/slice.xml && \
	for simulation in all brokers operations transactions rights freezes; do \
		$(BIN)/python -m fenceline.testing.simulation $$simulation --seeds $$seeds --workers 2 --progress 100 || exit 1; \
	done && \
	$(RESTING) --seeds $$($(BIN)/python -m tests.slices --seeds 0 400) --workers 2 --progress 100
	@$(SLOWEST)

record: setup java  ## ask Apache Kafka again for the answers in tests/recorded; look at the diff before you commit it
	@$(TEST_TOOLS)
	@$(PYTEST) -n 2 -q --answers=record -m recorded

test-spark43: setup java $(SPARK43)/.locked  ## run the Spark tests with PySpark 4.3.0, without Spark's own connector
	@PYTHONPATH="$(CURDIR)/src" $(SPARK43)/bin/python -m pytest -m "not kafka" tests/spark

$(SPARK43)/.locked: requirements.lock requirements-spark43.lock | $(BIN)/uv
	@echo "Installing PySpark 4.3.0 into $(SPARK43) ..."
	@test -x $(SPARK43)/bin/python || $(BIN)/uv venv --quiet --python $(BIN)/python $(SPARK43)
	@$(BIN)/uv pip sync --quiet --python $(SPARK43)/bin/python --require-hashes requirements.lock
	@$(BIN)/uv pip install --quiet --python $(SPARK43)/bin/python --require-hashes --no-deps -r requirements-spark43.lock
	@$(BIN)/uv pip check --quiet --python $(SPARK43)/bin/python
	@touch $@

SEEDS ?= 0..2000

simulate: setup  ## simulate the corpus and 2,000 seeds of quorums, clusters, operators, transactions, rights, frozen and resting leaders and an application (SEEDS=A..B)
	@$(OPERATIONS) --corpus $(CORPUS) --seeds $(SEEDS) --workers 2 --progress 100
	@$(SIMULATION) --seeds $(SEEDS) --workers 2 --progress 100
	@$(CLUSTERS) --seeds $(SEEDS) --workers 2 --progress 100
	@$(MEMBERS) --seeds $(SEEDS) --workers 2 --progress 100
	@$(RIGHTS) --seeds $(SEEDS) --workers 2 --progress 100
	@$(FREEZES) --seeds $(SEEDS) --workers 2 --progress 100
	@$(RESTING) --seeds $(SEEDS) --workers 2 --progress 100
	@$(TRANSACTIONS) --seeds $(SEEDS) --workers 2 --progress 100
	@$(APPLICATION) --seeds $(SEEDS) --workers 2 --progress 500

soak: setup java  ## run chaos tests, kill loops and fuzzing for half an hour; then simulate new seeds until stopped
	@$(TEST_TOOLS)
	@$(BIN)/python -m pytest -m soak --timeout=0
	@$(SIMULATION) --seeds $$(date +%s).. --stop --workers 2 --progress 1000

bench: setup java $(JARS)/.complete  ## run the benchmarks against Apache Kafka; writes benchmarks/results/
	@$(BIN)/python -m benchmarks

cards: setup java  ## run the programs of tools/clients through check-client; writes benchmarks/cards/ and docs/clients.md
	@$(BIN)/python tools/clients/make_cards.py $(CARDS_OPTIONS)

lint: setup  ## check formatting, lint, types and import contracts
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/mypy -p tools.dist
	@$(BIN)/lint-imports

audit: setup  ## look for known vulnerabilities of the locked dependencies; without network nothing is checked
	@$(BIN)/python tools/audit.py $(AUDIT_OPTIONS)

format: setup  ## format the code and sort imports
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

rules: setup  ## regenerate docs/rules/coverage.md: the code and tests that cite each rule
	@$(BIN)/python -m tests.rules_coverage

lock: $(BIN)/uv  ## regenerate requirements.lock from pyproject.toml, and the one of `make dist`
	@$(BIN)/uv pip compile --quiet --universal --generate-hashes --no-emit-index-url --python-version 3.11 --all-extras pyproject.toml -o requirements.lock
	@$(BIN)/uv pip compile --quiet --universal --generate-hashes --no-emit-index-url --python-version 3.11 tools/dist/requirements.in -o tools/dist/requirements.lock

DIST_TOOLS := .cache/dist/tools

dist: $(DIST_TOOLS)/.locked  ## build source archive and wheels into dist/, and try them in clean environments (DIST_OPTIONS=--help)
	@$(DIST_TOOLS)/bin/python -m tools.dist $(DIST_OPTIONS)

$(DIST_TOOLS)/.locked: tools/dist/requirements.lock | $(BIN)/uv
	@echo "Installing the tools that build ..."
	@test -x $(DIST_TOOLS)/bin/python || $(BIN)/uv venv --quiet --python $(BIN)/python $(DIST_TOOLS)
	@$(BIN)/uv pip sync --quiet --python $(DIST_TOOLS)/bin/python --require-hashes tools/dist/requirements.lock \
		|| { echo "The package index cannot be reached, or lacks one of these packages: nothing was built"; exit 1; }
	@touch $@

clean:
	@rm -rf $(VENV) $(SPARK43) .cache build dist *.egg-info
