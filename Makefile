# SPDX-License-Identifier: GPL-2.0-only
#
# make demo    the main job on live traffic: record, diagnose, report
# make test    every test; make test ONLY=calls those of one area, make test-fast those without root, traffic and guests
# Both install what is missing (Debian packages as root, Python packages into .venv).

PYTHON  ?= /usr/bin/python3
VENV    := .venv
PY      := $(VENV)/bin/python

# What each job needs from Debian; `make deps-demo` and `make deps-test` install what is missing.
DEPS_BUILD := build-essential pkg-config python3 python3-venv libbpf-dev libzstd-dev linux-perf \
	clang bpftool
DEPS_DEMO  := $(DEPS_BUILD) bpftrace memcached iproute2 ethtool util-linux procps
# Version of the release's clang, for its libFuzzer and AddressSanitizer; it may not be installed yet.
CLANG_VERSION := $(shell . /etc/os-release 2>/dev/null; [ "$$VERSION_ID" = 12 ] && echo 14 || echo 19)
# An existing cargo is used too; rust-version in tests/machinery/pt_emulation/Cargo.toml says which version is needed.
DEPS_RUST  := $(shell cargo --version 2>/dev/null | awk '{split($$2, v, "."); ok = v[1] > 1 || v[2] >= 85} \
	END {if (!ok) print "rustc-web cargo-web"}')
DEPS_TEST  := $(DEPS_DEMO) $(DEPS_RUST) libipt-dev redis-server nginx-light nftables tcpdump socat tmux \
	libclang-rt-$(CLANG_VERSION)-dev universal-ctags shellcheck debootstrap qemu-system-x86 busybox-static kmod groff-base nodejs \
	chromium chromium-driver liblwip-dev prometheus wireguard-tools ipvsadm unbound dnsmasq-base

# tools/downloads --list says what a first run downloads.
MEASURED := $(PYTHON) "$(CURDIR)/tools/downloads"
# Includes crates that only the tests need, so that `cargo test` downloads nothing, but not crates that only other systems need.
CRATES := cargo fetch -q --locked --target $$(rustc -vV | sed -n 's/^host: //p')

NATIVE := tools/nsight-record/clock tools/nsight-record/collect tools/nsight-capsule/stamp tools/nsight-monitor/histograms tools/nsight-report/native perf-scripts/dlfilters
LOAD := tools/nsight-demo/load tests/machinery/load

.PHONY: help demo test test-fast flake fuzz fuzzers lint format build native load install uninstall completions deb deb-source test-packages test-guests emulation decoder fixtures figures lock pins scripts vendor native-clean clean distclean \
	deps-build deps-demo deps-test deps-kernel trixie check-clocks truth flight-truth soak monitor-article monitor-sums monitor-soak bench case-study spsc jitter capsule-demo capsule-truth capsule-matrix kernel-check \
	kernel-boot

help:
	@sed -n '3,5s/^# //p' Makefile
	@echo "Also: install uninstall deb deb-source test-packages test-guests flake fuzz build emulation decoder fixtures lint format figures lock pins scripts vendor check-clocks truth flight-truth soak monitor-article monitor-sums monitor-soak" \
		"bench case-study spsc jitter capsule-demo capsule-truth capsule-matrix kernel-check kernel-boot clean distclean"

deps-build deps-demo deps-test: deps-%:
	@PACKAGES="$(DEPS_$(shell echo $* | tr a-z A-Z))" tools/install-packages

$(VENV)/.stamp: requirements.lock
	@echo "python: creating $(VENV) from requirements.lock"
	@$(PYTHON) -m venv $(VENV)
	@$(MEASURED) "Python packages" -- $(PY) -m pip install -q --disable-pip-version-check --require-hashes -r requirements.lock
	@touch $@

build: $(VENV)/.stamp native

native:
	@for d in $(NATIVE); do $(MAKE) -s -C $$d || exit 1; done

load:
	@for d in $(LOAD); do $(MAKE) -s -C $$d || exit 1; done

# Documentation/install.md says what is installed where, and lists the variables. The decoder is installed if it was built before.
install: build completions
	@PYTHON=$(PYTHON) tools/packaging/install

uninstall:
	@tools/packaging/install --uninstall

# Debian packages in build/deb; deb-source only their source package, which needs no network where it is built.
deb: completions
	@tools/packaging/make-deb

deb-source: completions
	@tools/packaging/make-deb-source

# In clean root file systems of both releases; takes an hour on few cores: Documentation/install.md.
test-packages: deps-test deb-source
	@for suite in bookworm trixie; do tests/install/test-packages $$suite || exit 1; done

# Tests that take too long for every run: the units under systemd, and what only a stock kernel has, each in guests; half an hour.
test-guests: deps-test
	@$(MAKE) -s build
	@$(PY) -m pytest -q -m explicit tests/install tests/capsule

completions: $(VENV)/.stamp
	@PYTHONPATH=tools/nsight-report:tools/nsight-record:tools/nsight-capsule:tools/nsight-monitor $(PY) tools/packaging/completions build/completions

demo: deps-demo
	@$(MAKE) -s build
	@$(MAKE) -s -C tools/nsight-demo/load
	@$(PY) tools/nsight-demo/nsight-demo

# Emulated Intel PT: see Documentation/pt-emulation.md.
emulation:
	@echo "emulation: building (two minutes the first time)"
	@cd tests/machinery/pt_emulation && $(MEASURED) "crates of the emulation" -- $(CRATES)
	@cd tests/machinery/pt_emulation && cargo build -q --release --locked --offline
	@$(MAKE) -s -C tests/machinery/pt_emulation/guest
	@$(MAKE) -s load

# Intel PT to calls: nsight-decode. Needs Rust and a C compiler; nsight-report uses it if it is built.
decoder:
	@echo "decoder: building (several minutes the first time)"
	@cd tools/nsight-decode && $(MEASURED) "crates of the decoder" -- $(CRATES)
	@cd tools/nsight-decode && cargo build -q --release --locked --offline

# The code that reads hostile files, as libFuzzer targets: Documentation/testing.md. A group that cannot be built on this machine is left out.
fuzzers: $(VENV)/.stamp
	@echo "fuzzers: building (several minutes the first time)"
	@$(PY) tests/fuzz/run --build

MINUTES ?= 10
fuzz: deps-test
	@$(MAKE) -s build
	@$(PY) tests/fuzz/run --minutes $(MINUTES) $(if $(ONLY),--only $(ONLY))

# Make every committed capture again: half an hour.
fixtures: deps-test
	@$(MAKE) -s build emulation
	@tests/machinery/guest/trixie --prepare
	@$(PY) tests/machinery/pt_emulation/make-capture --out build/fixtures
	@$(PY) tests/machinery/pt_emulation/fixtures/make-fixture build/fixtures \
		$$($(PY) tests/machinery/pt_emulation/make-capture --list | cut -d' ' -f1)
	@$(PY) tests/machinery/pt_emulation/fixtures/make-fixture --logged build/fixtures hog lock slow-function

# One of them: make fixture-hog
fixture-%: deps-test
	@$(MAKE) -s build emulation
	@tests/machinery/guest/trixie --prepare
	@$(PY) tests/machinery/pt_emulation/make-capture $* --out build/fixtures
	@$(PY) tests/machinery/pt_emulation/fixtures/make-fixture build/fixtures $*

# With ONLY=AREA,... only the directories below tests/ with these names, and the targets that they need. Three jobs for two cores: cargo lets the
# decoder wait for the emulation, since they share a directory.
ONLY ?=
test: deps-test
	@needed=$$($(PYTHON) tests/machinery/harness/areas.py $(ONLY)) && $(MAKE) -s -j3 build $$needed $(if $(ONLY),,lint)
	@$(PY) tests/run $(if $(ONLY),--only $(ONLY))

test-fast: build
	@$(PY) tests/run --fast

# The tests that depend on time or on this machine, N rounds idle and N with a busy loop on each core.
N ?= 20
flake: deps-test
	@needed=$$($(PYTHON) tests/machinery/harness/areas.py $(ONLY)) && $(MAKE) -s -j3 build $$needed
	@$(PY) tests/flake -n $(N) $(if $(ONLY),--only $(ONLY))

# Programs of Debian 13 beside this system. If they are not available, the tests that need them say so.
trixie:
	@tests/machinery/guest/trixie --prepare || true

deps-kernel:
	@$(MAKE) -s -C kernel-patches deps-check deps-send

lint: $(VENV)/.stamp
	@PY=$(PY) tests/lint

format: $(VENV)/.stamp
	$(VENV)/bin/ruff check --fix-only -q .
	$(VENV)/bin/ruff format -q .
	git ls-files '*.c' '*.h' ':!tools/nsight-decode/libipt/' | xargs $(VENV)/bin/clang-format -i
	cd tests/machinery/pt_emulation && cargo fmt
	cd tools/nsight-decode && cargo fmt

# Section 6.1 of the paper: 10^7 interleaved readings, on this host and in a guest with a distorted clock.
check-clocks: deps-test
	@$(MAKE) -s build
	@$(PY) tests/clocks/ordering.py
	@$(PY) tests/clocks/ordering.py --guest 6.12 --disturb --seconds 30 --poll-us 300

truth: deps-test
	@$(MAKE) -s build
	@$(MAKE) -s load
	@$(MAKE) -s decoder
	@$(PY) tests/evaluation/truth/scores.py $(if $(CAPTURES),--captures $(CAPTURES))

# Documentation/flight-recorder.md: stalls in one of 10,000 requests, and 10^8 records through memory of fixed size and to disk.
flight-truth: deps-test
	@$(MAKE) -s build
	@$(MAKE) -s load
	@$(PY) tests/evaluation/truth/flight.py

soak: deps-test
	@$(MAKE) -s build
	@$(MAKE) -s load
	@$(PY) tests/evaluation/bench/soak.py

# Documentation/monitor.md: three runs of an article, and sums after 10^6 packets beside the kernel's own.
monitor-article: deps-test
	@$(MAKE) -s build load
	@$(PY) tests/evaluation/monitor/article.py

monitor-sums: deps-test
	@$(MAKE) -s build
	@$(PY) tests/evaluation/monitor/sums.py

# 10^8 datagrams: about half an hour.
monitor-soak: deps-test
	@$(MAKE) -s build
	@$(PY) tests/evaluation/monitor/monitor_soak.py

# Documentation/case-study.md: make case-study STORY=redis runs one of memcached, redis, user-stack.
STORY ?= all
case-study: deps-test
	@$(MAKE) -s build
	@$(MAKE) -s load
	@$(PY) tests/evaluation/case_study/run.py $(STORY)

# The kernel series and that of perf, on every base or BASE: kernel-patches/README.md has the times.
kernel-check kernel-boot: kernel-%:
	@$(MAKE) -C kernel-patches $* BASE=$(BASE)

# Documentation/accuracy.md: causes of jitter in steps of a program, one at a time.
jitter: deps-test
	@$(MAKE) -s build
	@$(PY) tests/evaluation/jitter/run.py

# The queue between two threads: its statistics on two cores and on one, and what delayed the outliers.
spsc: deps-demo
	@$(MAKE) -s build
	@$(MAKE) -s -C tools/nsight-interval/spsc
	@tools/nsight-interval/spsc/explain

# Two guests talk through this host, one layer on the way is stalled: LAYER=link or guest; by default a random one.
LAYER ?= any
capsule-demo: deps-test
	@$(MAKE) -s build
	@$(PY) tests/evaluation/capsule/guests.py --layer $(LAYER)

# Delays of known size at random layers; and traffic compared byte by byte while nsight-capsule starts and ends: PACKETS=10000000 is its goal.
PACKETS ?= 1000000
capsule-truth: deps-test
	@$(MAKE) -s build
	@$(PY) tests/evaluation/capsule/truth.py

capsule-matrix: deps-test
	@$(MAKE) -s build
	@$(PY) tests/evaluation/capsule/matrix.py --packets $(PACKETS)

bench: deps-test
	@$(MAKE) -s build
	@missed=; for b in tests/evaluation/bench/bench_*.py; do $(PY) $$b || missed="$$missed $$b"; done; \
		[ -z "$$missed" ] || { echo "bench: missed or failed:$$missed"; exit 1; }

# Maintainers: renew requirements.lock of a checkout, and that of an installation, which has the same versions.
PIP_COMPILE := build/lock-venv/bin/pip-compile -q --generate-hashes --strip-extras --no-emit-index-url \
	--no-emit-trusted-host --no-emit-find-links
lock:
	$(PYTHON) -m venv build/lock-venv
	build/lock-venv/bin/pip install -q pip-tools
	$(PIP_COMPILE) --allow-unsafe -o requirements.lock requirements.in tools/nsight-report/pyproject.toml
	$(PIP_COMPILE) -c requirements.lock -o tools/nsight-report/requirements.lock tools/nsight-report/pyproject.toml

# Maintainers: pin the newest guest kernels of the Debian archive, as one commit; prints which kernel sources the archive has.
pins:
	@$(PYTHON) tests/machinery/guest/pins

# Maintainers: write the scripts that are generated from one source, and the page of losses.
scripts:
	@bpftrace/source/generate
	@$(PY) tools/nsight-report/write-pages

# Maintainers: renew the bundled browser library from the npm registry; without VERSION, the pinned one again.
vendor:
	tools/nsight-report/vendor-page-library $(VERSION)

# Every figure and the page from a committed capture: see Documentation/figures.md.
figures: build
	@test -x build/cargo/release/nsight-decode || $(MAKE) -s decoder
	@mkdir -p build/figures
	@for f in lock quiet; do \
		test -d build/figures/$$f || $(PY) tests/machinery/pt_emulation/fixtures/unpack.py $$f build/figures || exit 1; \
		ln -sfn $$f/capture.nsight build/figures/$$f.nsight; done
	@tools/nsight-report/nsight-report build/figures/lock.nsight --symfs build/figures/lock/symfs \
		--target p50-100 -o build/figures/report
	@tools/nsight-report/nsight-report build/figures/lock.nsight --symfs build/figures/lock/symfs \
		--target p50-100 --against build/figures/quiet.nsight -o build/figures/against | tail -n 1
	@test -d build/figures/many.nsight || $(PY) tests/evaluation/bench/report_capture.py build/figures/many.nsight
	@tools/nsight-report/nsight-report build/figures/many.nsight -o build/figures/many | tail -n 1

native-clean:
	for d in $(NATIVE); do $(MAKE) -s -C $$d clean || exit 1; done

clean: native-clean
	for d in $(LOAD) tests/evaluation/case_study; do $(MAKE) -s -C $$d clean; done
	rm -rf build/tmp .pytest_cache .mypy_cache .ruff_cache .hypothesis

distclean: clean
	rm -rf build $(VENV)
