# Thin: each target is one or two commands that can be typed by hand.

TARGET := $(abspath $(or $(CARGO_TARGET_DIR),target))
CARGO ?= cargo
LOCKED := --locked
FEATURES := --features plimsoll/kerberos,plimsoll/kubernetes
# Of the binary that tests run: `dev` is the one that cargo builds with the tests, `release` the one that ships.
PROFILE ?= dev
BINARY = $(TARGET)/$(if $(filter dev,$(PROFILE)),debug,$(PROFILE))/plimsoll
# Debian's, for which `deps` installs what is needed, where there is one.
PYTHON ?= $(firstword $(wildcard /usr/bin/python3) python3)

VERSION := $(shell sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml)
# What programs look for the C library by: before 1.0 the minor version breaks, too (clients/c/build.rs).
MAJOR := $(firstword $(subst ., ,$(VERSION)))
SOVERSION := $(if $(filter 0,$(MAJOR)),0.$(word 2,$(subst ., ,$(VERSION))),$(MAJOR))
PREFIX ?= /usr/local
LIBDIR ?= $(PREFIX)/lib

.DEFAULT_GOAL := help
.PHONY: help demo build install-c wheel test test-build test-rust test-benches test-again binary test-python test-api test-dashboard test-worlds lint fmt gates bench bench-sim bench-fleet bench-control bench-lottery bench-load bench-corba bench-model bench-worlds deny deps go-tools dist dist-check dist-deps test-package clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: ## members, a balancer, load and failures, live in this terminal
	@scripts/build-demo '$(CARGO)' '$(TARGET)'
	@$(TARGET)/demo/plimsoll demo $(ARGS)

build: ## the release binary, target/release/plimsoll
	$(CARGO) build $(LOCKED) --release -p plimsoll

install-c: ## the C library of the lottery's clients, into PREFIX=/usr/local (DESTDIR=, LIBDIR=)
	$(CARGO) build $(LOCKED) --profile library -p plimsoll-c
	install -d '$(DESTDIR)$(PREFIX)/include' '$(DESTDIR)$(LIBDIR)/pkgconfig'
	install -m 644 clients/c/include/plimsoll.h '$(DESTDIR)$(PREFIX)/include'
	install -m 644 '$(TARGET)/library/libplimsoll_c.a' '$(DESTDIR)$(LIBDIR)/libplimsoll.a'
	install -m 755 '$(TARGET)/library/libplimsoll_c.so' '$(DESTDIR)$(LIBDIR)/libplimsoll.so.$(VERSION)'
	ln -sf libplimsoll.so.$(VERSION) '$(DESTDIR)$(LIBDIR)/libplimsoll.so.$(SOVERSION)'
	ln -sf libplimsoll.so.$(SOVERSION) '$(DESTDIR)$(LIBDIR)/libplimsoll.so'
	sed 's|@PREFIX@|$(PREFIX)|; s|@LIBDIR@|$(LIBDIR)|; s|@VERSION@|$(VERSION)|' clients/c/plimsoll.pc.in \
		>'$(DESTDIR)$(LIBDIR)/pkgconfig/plimsoll.pc'

wheel: ## the Python package of the lottery's clients, target/wheel/*.whl
	$(CARGO) build $(LOCKED) --profile library -p plimsoll-c
	rm -rf '$(TARGET)/wheel'
	mkdir -p '$(TARGET)/wheel/source'
	cp -r clients/python/pyproject.toml clients/python/setup.py clients/python/README.md clients/python/src '$(TARGET)/wheel/source'
	install -m 755 '$(TARGET)/library/libplimsoll_c.so' '$(TARGET)/wheel/source/src/plimsoll/libplimsoll.so'
	$(PYTHON) -m pip wheel -q --no-index --no-deps --no-build-isolation -w '$(TARGET)/wheel' '$(TARGET)/wheel/source'

test: deps go-tools ## all tests, with real clients, servers and proxies (PROFILE=release: of the binary that ships)
	$(MAKE) --no-print-directory binary wheel
	$(MAKE) --no-print-directory -j6 -o binary -o wheel test-rust test-python test-api test-dashboard test-worlds test-benches

test-build: deps go-tools binary wheel ## compile all that the tests run, and run none

binary: # the tests, and the binary that they run
	$(CARGO) test $(LOCKED) --workspace $(FEATURES) --no-run
	$(if $(filter-out dev,$(PROFILE)),$(CARGO) build $(LOCKED) --profile $(PROFILE) -p plimsoll)

test-rust: binary ## the tests in Rust, those that wait beside those that work (TESTS='--only e2e tls::')
	PLIMSOLL_BIN='$(BINARY)' scripts/run-tests --cargo '$(LOCKED) --workspace $(FEATURES)' $(TESTS)

test-again: deps go-tools wheel ## the end-to-end tests ten times with two busy loops beside them, an hour; none may fail
	scripts/leaves-nothing scripts/run-tests --cargo '$(LOCKED) --workspace $(FEATURES)' --only e2e --times 10 --beside 2

test-benches: # the benches' and the worlds' own parts
	python3 -B -m unittest discover -q -s benches
	python3 -B -m unittest discover -q -s tests/worlds -t .

test-worlds: binary ## ordinary days on real sockets, the short form: mostly waits
	PLIMSOLL_BIN='$(BINARY)' python3 -B -m tests.worlds --short --jobs 4

test-python: binary wheel ## the wheel in a fresh environment, against real daemons
	rm -rf '$(TARGET)/venv'
	$(PYTHON) -m venv '$(TARGET)/venv'
	'$(TARGET)/venv/bin/pip' install -q --no-index --no-deps '$(TARGET)'/wheel/*.whl
	PLIMSOLL_BIN='$(BINARY)' MYPY='$(PYTHON) -m mypy' \
		'$(TARGET)/venv/bin/python' -B -m unittest discover -q -s clients/python/tests

test-api: binary ## control over TLS against its OpenAPI document, with invented requests (schemathesis)
	PYTHON='$(PYTHON)' scripts/install-schemathesis '$(TARGET)/schemathesis'
	PLIMSOLL_BIN='$(BINARY)' '$(TARGET)/schemathesis/bin/python' -B -m unittest discover -q -s tests/api

test-dashboard: binary ## the dashboard in headless Chromium (Playwright, axe); pictures in target/dashboard
	PYTHON='$(PYTHON)' scripts/install-playwright '$(TARGET)/playwright'
	PLIMSOLL_BIN='$(BINARY)' PICTURES='$(TARGET)/dashboard' \
		'$(TARGET)/playwright/bin/python' -B -m unittest discover -q -s tests/dashboard

lint: deps ## formatting, clippy, the documentation's links (warnings as errors), and the rule against flaky tests
	$(CARGO) fmt --all --check
	python3 -B -m unittest discover -q -s tests/house
	$(CARGO) clippy $(LOCKED) --workspace $(FEATURES) --all-targets -- -D warnings
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc $(LOCKED) --workspace $(FEATURES) --no-deps --keep-going

fmt: ## format the code
	$(CARGO) fmt --all

gates: deps build ## instructions, system calls and memory per request against their limits (PEERS=1: HAProxy's and nginx's too)
	benches/gates.py $(if $(PEERS),--peers)

bench: deps build ## beside HAProxy, nginx and Envoy, then bench-load, 45 minutes (ARGS=--quick: 8), into bench/results/
	scripts/install-bench-peers
	benches/bench.py $(ARGS); proxies=$$?; benches/load.py $(filter --quick,$(ARGS)) && exit $$proxies

bench-sim: ## strategies in simulated fleets and the lottery in simulated clusters, the long form: minutes
	$(CARGO) test $(LOCKED) --release -p plimsoll-brain --test adaptive --test tables --test sessions --test idle_sessions --test host_slots --test lottery --test together -- --ignored --nocapture --test-threads 1

bench-fleet: ## what it costs to be one of 16 balancers of 100,000 members, minutes
	$(CARGO) run $(LOCKED) --profile fast -p plimsoll-cluster --example fleet_scale -- $(ARGS)

bench-control: deps build ## what 1,000 groups of 100 members cost at rest, and 100 changes a second, 6 minutes (ARGS=--quick: 3)
	benches/control.py $(ARGS)

bench-lottery: ## what an answer of a lottery's daemon costs among 100, a minute; fails if a target is missed (ARGS='100 5')
	$(CARGO) run $(LOCKED) --profile fast -p plimsoll-cluster --example lottery_answers -- \
		--out 'bench/results/lottery-$(shell date -u +%Y%m%dT%H%M).json' $(ARGS)

bench-load: deps build ## the load generator beside wrk, oha, hey, fortio, k6 and ab, 20 minutes (ARGS=--quick: 4)
	scripts/install-bench-peers
	benches/load.py $(ARGS)

bench-corba: deps build ## what each way of balancing costs a client on omniORB, 4 minutes (ARGS=--quick: 1)
	benches/corba.py $(ARGS)

bench-model: ## models: events a second of the simulator, accuracy and times of the solver, three minutes
	$(CARGO) run $(LOCKED) --release -p plimsoll-lqn --example events
	$(CARGO) run $(LOCKED) --release -p plimsoll-lqn --example solver '' 4

bench-worlds: deps build ## all ordinary days on real sockets, five seeds, beside HAProxy and other strategies, two hours
	python3 -B -m tests.worlds --seeds 5 -s adaptive,least_request,least_connections,round_robin,haproxy $(ARGS)

# `dev` builds in a fraction of the time, to try packages themselves.
DIST_PROFILE ?= release
export DIST_LEVEL ?= $(if $(filter dev,$(DIST_PROFILE)),1,9)
DIST_TARGET ?= x86_64-unknown-linux-musl
STATIC = $(TARGET)/$(DIST_TARGET)/$(if $(filter dev,$(DIST_PROFILE)),debug,$(DIST_PROFILE))/plimsoll

dist: dist-deps ## packages: static binary, tarball, Debian package, OCI image, SBOM, in target/dist (DIST_PROFILE=dev: quickly)
	packaging/static-binary $(DIST_PROFILE)
	packaging/dist.py --binary '$(STATIC)' --out '$(TARGET)/dist'

dist-check: dist-deps ## builds the packages twice, in two folders, and compares them byte for byte
	packaging/check $(DIST_PROFILE)

test-package: dist ## the packages: read back, and installed, upgraded and purged on a bare Debian with systemd (needs root)
	packaging/dist.py --binary '$(STATIC)' --out '$(TARGET)/dist/earlier' --deb-version 0.0.1-1 --only-deb
	DIST='$(TARGET)/dist' $(PYTHON) -B -m unittest discover -s packaging/tests

dist-deps: # what the packages are made with
	@scripts/install-test-deps --packages

deny: ## licences, advisories, bans and sources of the dependencies (needs cargo-deny)
	$(CARGO) deny --version >/dev/null 2>&1 || $(CARGO) install --locked cargo-deny
	$(CARGO) deny check

deps: ## what the tests, gates and bench need from Debian, and ORBs on Java where Java is
	@scripts/install-test-deps
	-@scripts/install-corba-java

go-tools: ## programs in Go that the tests run: h2spec, grpc-go's interop client and server, a client of xDS
	@scripts/install-go-tools

clean: ## what was built
	$(CARGO) clean
