#!/bin/bash
# Runs every test that this machine can run, group by group, on the release build, and closes with
# one line: N passed, N failed, N skipped.
set -uo pipefail
cd "$(dirname "$0")/.." || exit

build=build/release
results=$build/test-results
floor=$(cat MIN_ONNXRUNTIME_VERSION)
rm -rf "$results"
mkdir -p "$results"

for group in unit golden conformance provider error ptx gpu multi_rank; do
  [ "$(ctest --test-dir $build -N -L "^$group\$" | awk '/^Total Tests:/ {print $3}')" != 0 ] || continue
  scripts/timed.sh "Tests: $group" ctest --test-dir $build -L "^$group\$" -j "$(nproc)" \
    --output-on-failure --output-junit "test-results/ctest-$group.xml"
done

# Python tests say themselves which of them need which runtime.
scripts/timed.sh "Tests: python, newest runtime" \
  .venv/bin/python -m pytest -q -p no:cacheprovider tests "--junitxml=$results/python-newest.xml"
scripts/timed.sh "Tests: python, onnxruntime $floor" env "PYTHONPATH=.deps/onnxruntime-$floor" \
  .venv/bin/python -m pytest -q -p no:cacheprovider tests/python "--junitxml=$results/python-$floor.xml"

.venv/bin/python scripts/summarize_tests.py "$results" --expect python-newest "python-$floor"
