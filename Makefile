# Everything a developer runs, and all that CI runs: `make lint` and `make test`.
# `make help` lists the targets; each installs what it needs by tests/install, or says what is missing.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
# rdma-sys is built with libclang 14 or 15. Only where a newer one stands beside it, it has to be said which is meant:
# otherwise plain Cargo finds the same, and a variable that comes and goes would have it build everything anew.
ifneq ($(wildcard /usr/lib/llvm-1[6-9]/lib/libclang[.-][s1]* /usr/lib/llvm-[2-9][0-9]/lib/libclang[.-][s1-9]*),)
export LIBCLANG_PATH ?= $(patsubst %/,%,$(dir $(firstword $(wildcard /usr/lib/llvm-1[45]/lib/libclang[.-][s1]*))))
endif

help: ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

build: ## both binaries and the tools, optimised, in build/release
	tests/install build
	cargo build --release --locked --bins

demo: build ## a volume served, attached and measured on this machine, as root; under three minutes
	demo/run

test: ## every test but the soak (under 35 minutes on two cores)
	tests/run full

test-fast: ## unit, property and tidy tests, and a short simulation (under 5 minutes)
	tests/run fast

test-soak: ## what takes longer: long simulations, long outages of the network
	tests/run soak

test-interop: ## what does not run in Cargo: kernels in a VM, PyPI's initiator, NBD clients, bad networks
	tests/run interop

lint: ## rustfmt, clippy, licences of what we depend on
	tests/install lint
	cargo fmt --all --check
	rustfmt --check fuzz/targets/*.rs
	cargo clippy --locked --workspace --all-targets -- -D warnings
	cargo clippy --locked --workspace --bins --no-default-features -- -D warnings
	cargo deny --locked --all-features check licenses bans sources

fuzz: ## libFuzzer, a minute per target
	tests/install fuzz
	fuzz/run

bench: ## the figures of docs/performance.md, on this machine (8 minutes), and a page with charts of them
	tests/install build
	cargo build --release --locked --bins
	mkdir -p build/bench
	build/release/ironside-tools perf --suite --html build/bench/report.html --json build/bench/report.json
	@echo 'charts: build/bench/report.html'

clean: ## Cargo's output, and what the tests left
	cargo clean
	rm -rf fuzz/build

.PHONY: help build demo test test-fast test-soak test-interop lint fuzz bench clean
