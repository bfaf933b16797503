# Thin: each target is one or two commands that can be typed by hand.

TARGET := $(abspath $(or $(CARGO_TARGET_DIR),target))
CARGO ?= cargo
LOCKED := --locked

.DEFAULT_GOAL := help
.PHONY: help demo build test lint fmt gates bench bench-sim bench-lottery bench-load bench-corba bench-model deny deps clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: ## members, a balancer, load and failures, live in this terminal
	$(CARGO) build $(LOCKED) --profile fast -p plimsoll
	$(TARGET)/fast/plimsoll demo $(ARGS)

build: ## the release binary, target/release/plimsoll
	$(CARGO) build $(LOCKED) --release -p plimsoll

test: deps ## all tests, with real clients, servers and proxies
	$(CARGO) build $(LOCKED) --profile fast -p plimsoll
	python3 -B -m unittest discover -q -s benches
	PLIMSOLL_BIN=$(TARGET)/fast/plimsoll $(CARGO) test $(LOCKED) --workspace --no-fail-fast

lint: ## formatting, clippy and the documentation's links, warnings as errors
	$(CARGO) fmt --all --check
	$(CARGO) clippy $(LOCKED) --workspace --all-targets -- -D warnings
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc $(LOCKED) --workspace --no-deps

fmt: ## format the code
	$(CARGO) fmt --all

gates: deps build ## instructions, system calls and memory per request against their limits (PEERS=1: HAProxy's and nginx's too)
	benches/gates.py $(if $(PEERS),--peers)

bench: deps build ## beside HAProxy, nginx and Envoy, then bench-load, 45 minutes (ARGS=--quick: 8), into bench/results/
	scripts/install-bench-peers
	benches/bench.py $(ARGS); proxies=$$?; benches/load.py $(filter --quick,$(ARGS)) && exit $$proxies

bench-sim: ## strategies in simulated fleets and the lottery in simulated clusters, the long form: minutes
	$(CARGO) test $(LOCKED) --release -p plimsoll-brain --test adaptive --test sessions --test host_slots --test lottery -- --ignored --nocapture

bench-lottery: ## what an answer of a lottery's daemon costs among 100, a minute
	$(CARGO) run $(LOCKED) --profile fast -p plimsoll-cluster --example lottery_answers -- $(ARGS)

bench-load: deps build ## the load generator beside wrk, oha, hey, fortio, k6 and ab, 20 minutes (ARGS=--quick: 4)
	scripts/install-bench-peers
	benches/load.py $(ARGS)

bench-corba: deps build ## what each way of balancing costs a client on omniORB, 4 minutes (ARGS=--quick: 1)
	benches/corba.py $(ARGS)

bench-model: ## events a second of the simulator of models, a minute
	$(CARGO) run $(LOCKED) --release -p plimsoll-lqn --example events

deny: ## licences, advisories, bans and sources of the dependencies (needs cargo-deny)
	$(CARGO) deny --version >/dev/null 2>&1 || $(CARGO) install --locked cargo-deny
	$(CARGO) deny check

deps: ## what the tests, gates and bench need from Debian, and ORBs on Java where Java is
	@scripts/install-test-deps
	-@scripts/install-corba-java

clean: ## what was built
	$(CARGO) clean
