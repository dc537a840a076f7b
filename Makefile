# Every target installs what it needs: the only things asked of the machine are Python 3.11+, make and Java 17+.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
JARS   := $(VENV)/.jars
PLOT   := $(VENV)/.plot
FLINK  := $(VENV)/.flink
ATHERIS := $(VENV)/.atheris
COMPILED := $(wildcard cdc/encode/*.pyx connectors/*/*/*.pyx)
ALONE  := tests/unit tests/property
WORKERS ?= 3

.DEFAULT_GOAL := help
.PHONY: help install demo bench bench-quick bench-decisions bench-latency bench-growth bench-memory bench-streams bench-hotpath bench-many bench-apply bench-starts bench-endurance bench-library bench-views bench-flink readers soak soak-views soak-apply soak-fleet fuzz test test-all test-quick format lint type clean lock

help:            ## show this list
	@grep -hE '^[a-z-]+: .*##|^[a-z-]+:  *##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/' | expand -t 16

install: $(STAMP)  ## make .venv with the cdc command in it

$(STAMP): requirements.lock pyproject.toml $(COMPILED)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed, this is " + sys.version.split()[0] + ": make PYTHON=python3.11 install")'
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv $(VENV)
	@echo "installing into $(VENV); the first time it takes minutes"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $(STAMP)

$(JARS): $(STAMP) cdc/dev/jars.py spark_apply/spark/jvm/build_class_archive.py
	$(BIN)/python -m cdc.dev.jars
	$(BIN)/python -m spark_apply.spark.jvm.build_class_archive
	@touch $(JARS)

demo: $(JARS)    ## start the servers, change rows, watch copies and views follow, compare everything
	$(BIN)/cdc demo

test: $(JARS)    ## everything that is asked of each push, on real servers; lint and types among it
	$(BIN)/python -m pytest -n $(WORKERS) --in-turns --durations=20 --maxfail=50

test-all: $(JARS) $(FLINK) ## everything at full strength, hours of it, or what fits into MINUTES=60; goes on where it was stopped; docs/test-all.json
	$(BIN)/python -m tests.everything $(if $(MINUTES),--minutes $(MINUTES))

test-quick: $(STAMP)  ## what needs no server
	$(BIN)/python -m pytest $(ALONE)

SECONDS ?= 600
SEED    ?= 1
SOURCE  ?= postgres18
PRODUCER ?= own

soak: $(JARS)    ## faults for SECONDS=600 by SEED=1 on SOURCE=postgres18, mysql, mariadb or triggers-mysql …: nothing lost, doubled, torn
	$(BIN)/python -m tests.faults --source $(SOURCE) --producer $(PRODUCER) --seconds $(SECONDS) --seed $(SEED) --folder .cdc-soak --json .cdc-soak/report.json

soak-views: $(JARS)    ## the same for views: SECONDS=600 by SEED=1; each view is Spark's answer, no sum is ever torn
	$(BIN)/python -m tests.faults.view_soak --seconds $(SECONDS) --seed $(SEED) --folder .cdc-view-soak

soak-apply: $(JARS)    ## an apply job, some of whose copies and rows fail: SECONDS=600 by SEED=1; the other tables are as fresh as before
	$(BIN)/python -m tests.faults.apply_soak --seconds $(SECONDS) --seed $(SEED) --folder .cdc-apply-soak

soak-fleet: $(JARS) ## members of a fleet killed, frozen, cut off, rolled, for SECONDS=600 by SEED=1; how long a take-over takes
	$(BIN)/python -m tests.faults.fleet_soak --seconds $(SECONDS) --seed $(SEED) --folder .cdc-fleet-soak --json .cdc-fleet-soak/report.json

$(ATHERIS): $(STAMP) tests/fuzz/requirements.lock
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --only-binary :all: --require-hashes -r tests/fuzz/requirements.lock \
	&& touch $(ATHERIS) || echo "atheris does not install here"

fuzz: $(ATHERIS) ## any bytes into each parser for SECONDS=600 by SEED=1: sanitizers and coverage, where they can be had
	$(BIN)/python -m tests.fuzz --sanitize --seconds $(SECONDS) --seed $(SEED)

format: $(STAMP) ## rewrite the sources in house style
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

lint: $(STAMP)   ## ruff and import-linter
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports

type: $(STAMP)   ## mypy, strict
	$(BIN)/mypy

lock:            ## pin again what pyproject.toml asks for (needs uv)
	uv pip compile --generate-hashes --no-emit-index-url --no-emit-find-links --python-version 3.11 --extra test --no-header -q pyproject.toml -o requirements.lock
	uv pip compile --generate-hashes --no-emit-index-url --no-emit-find-links --python-version 3.11 --no-header -q -c requirements.lock bench/requirements.txt -o bench/requirements.lock
	uv pip compile --generate-hashes --no-emit-index-url --no-emit-find-links --python-version 3.11 --no-header -q -c requirements.lock tests/fuzz/requirements.txt -o tests/fuzz/requirements.lock

$(PLOT): $(STAMP) bench/requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r bench/requirements.lock
	@mkdir -p .bench && touch $(PLOT)

$(FLINK): $(STAMP) bench/peers/requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes --no-deps -r bench/peers/requirements.lock
	@touch $(FLINK)

bench: $(JARS) $(PLOT) ## ours beside Debezium: streams, snapshots, latency; then ours alone, by events and by tables
	$(BIN)/python -m bench.capture.streams --events 1000000 --json .bench/streams.json
	$(BIN)/python -m bench.measure.plot .bench/streams.json .bench/streams.png
	$(BIN)/python -m bench.capture.streams --events 1000000 --shapes 3,60,wide
	$(BIN)/python -m bench.capture.latency
	$(BIN)/python -m bench.capture.growth
	$(BIN)/python -m bench.capture.hotpath

readers: $(JARS) $(FLINK) ## which readers read what a connector writes, each compared with SELECT
	$(BIN)/python -m bench.readers

bench-quick: $(JARS) $(PLOT) ## the same in five minutes: fewer events, one run of each
	$(BIN)/python -m bench.capture.streams --events 100000 --runs 1 --json .bench/streams.json
	$(BIN)/python -m bench.measure.plot .bench/streams.json .bench/streams.png
	$(BIN)/python -m bench.capture.latency --warm 5 --seconds 10
	$(BIN)/python -m bench.capture.growth --events 100000,300000 --tables 1,20 --partitions 6 --of 100000 --runs 1

bench-decisions: $(JARS) ## print the figures that docs/adr quotes
	$(BIN)/python -m bench.capture.decisions
	$(BIN)/python -m bench.capture.memory
	$(BIN)/python -m bench.capture.mysql_rows
	$(BIN)/python -m bench.capture.binlog_readers

bench-memory: $(JARS) ## a connector's peak memory: 5 million rows read, 2 million in one transaction, one large value of 3 million left out
	$(BIN)/python -m bench.capture.memory

bench-streams: $(JARS) ## our streams and snapshots beside Debezium's, over the same rows
	$(BIN)/python -m bench.capture.streams

bench-latency: $(JARS) ## from commit to visible at 1,000 single-row transactions a second, beside Debezium's
	$(BIN)/python -m bench.capture.latency

bench-growth: $(JARS) ## what an event costs, from 10⁵ to 10⁷ of them and of 1 to 200 tables
	$(BIN)/python -m bench.capture.growth

bench-hotpath: $(STAMP) ## CPU of an event from log to sink, over logs held in memory, and what metrics add to it: no server
	$(BIN)/python -m bench.capture.hotpath
	$(BIN)/python -m bench.capture.metering

bench-many: $(JARS) ## 100 idle connectors on one machine, and one of 2,000 tables: memory, CPU, start
	$(BIN)/python -m bench.capture.many

bench-apply: $(JARS) ## the apply job into each store: rates, freshness, rebuild, verify, beside what is asked for
	$(BIN)/python -m bench.derived.apply

bench-starts: $(JARS) ## from the start of `cdc apply` to a row in its store, and of Spark to its first answer
	$(BIN)/python -m bench.derived.starts

bench-endurance: $(JARS) ## an apply job over 5,000 small batches, idle, with 300 tables, and behind by 10 million events
	$(BIN)/python -m bench.derived.endurance
	$(BIN)/python -m bench.derived.endurance --tables 300 --changed 30 --batches 200
	$(BIN)/python -m bench.derived.endurance --backlog 10000000

bench-library: $(JARS) ## a million rows to Arrow, as a table, as changes, and without Kafka
	$(BIN)/python -m bench.derived.library

bench-views: $(JARS) ## a step of a view job in each engine alone, by how much it changes; and a job as a whole
	$(BIN)/python -m bench.views.steps
	$(BIN)/python -m bench.views.steps --engine spark
	$(BIN)/python -m bench.views.steps --engine postgres
	$(BIN)/python -m bench.views.jobs
	$(BIN)/python -m bench.views.sketches

bench-flink: $(JARS) $(FLINK) ## a view job, and the apply job into PostgreSQL and Iceberg, beside Flink SQL over the same topics
	$(BIN)/python -m bench.views.beside_flink
	$(BIN)/python -m bench.views.outcomes_beside_flink
	$(BIN)/python -m bench.derived.apply_beside_flink

clean:           ## remove what the targets made (servers' state too)
	test ! -x $(BIN)/cdc || $(BIN)/cdc dev down
	rm -f $(COMPILED:.pyx=.*.so) $(COMPILED:.pyx=.c)
	rm -rf $(VENV) .cdc-dev .cdc-soak .cdc-view-soak .cdc-apply-soak .cdc-fleet-soak .cdc-fuzz .bench build *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
