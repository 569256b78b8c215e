# The front door. Everything else is in scripts/ and CMakePresets.json.
.DEFAULT_GOAL := help
SHELL := /bin/bash
.PHONY: help setup build demo tiny-model test test-sanitizers fuzz bench wheel bundle lint format clean

PLUGIN := build/release/lib/libonnxruntime_ep_tenon.so
TIMED := scripts/timed.sh
TINY := build/tiny-model

help:  ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup:  ## install and fetch what is missing
	@$(TIMED) "Set up" scripts/setup.sh

build: setup  ## build the plugin and install the Python package into .venv
	@$(TIMED) "Build" scripts/build.sh release onnxruntime_ep_tenon
	@$(TIMED) "Install into .venv" scripts/install_editable.sh $(PLUGIN)

demo: build  ## quantise a sentence encoder to NVFP4 and run it; leaves build/demo/index.html
	@$(TIMED) "Demo" .venv/bin/tenon demo --out build/demo

tiny-model: build  ## train a character model, tell what each format costs it, let it speak
	@[ -d $(TINY)/int4 ] || $(TIMED) "Train" .venv/bin/tenon models tiny --out $(TINY)
	@.venv/bin/tenon perplexity $(TINY)/{f32,nvfp4,mxfp8,int4} --text $(TINY)/held_out.txt \
	  --out $(TINY)/perplexity.json
	@.venv/bin/python examples/python/generate.py $(TINY)/nvfp4 --prompt "The provider" \
	  --temperature 0.5 --count 200

test: build  ## run every test that this machine can run
	@$(TIMED) "Build tests" scripts/build.sh release
	@scripts/test.sh

test-sanitizers: setup  ## unit and provider tests under ASan and UBSan, concurrent ones under TSan
	@scripts/test_sanitizers.sh

fuzz: build  ## random graphs against the stock provider, texts against parsers: SECONDS=600 SEED=1
	@$(TIMED) "Fuzz graphs" .venv/bin/python -m tests.fuzz --seconds $(or $(SECONDS),600) --seed $(or $(SEED),1)
	@$(TIMED) "Fuzz parsers" scripts/fuzz_parsers.sh $$(($(or $(SECONDS),600) / 10))

bench: build  ## the speed table against ONNX Runtime's CPU provider, into build/bench
	@$(TIMED) "Benchmark" .venv/bin/python -m onnxruntime_ep_tenon bench --suite --out build/bench

wheel: build  ## the Python wheel for this machine's architecture, into dist/
	@$(TIMED) "Wheel" scripts/make_wheel.sh build/release

bundle: setup  ## one file for a GPU machine: x86_64 plugin, package, tests and ./run, into dist/
	@$(TIMED) "Bundle" scripts/make_bundle.sh

lint:  ## formatting, shell and Python checks; clang-tidy with TIDY=1
	@scripts/setup.sh --lint >/dev/null
	@scripts/lint.sh

format:  ## rewrite all sources in the project's style
	@scripts/setup.sh --lint >/dev/null
	@scripts/lint.sh --fix

clean:  ## remove build results; keeps .deps and .venv, which setup fetched
	rm -rf build dist
