#!/bin/bash
# The unit, provider and error groups under AddressSanitizer and UndefinedBehaviorSanitizer, the
# concurrent cases under ThreadSanitizer. Closes with one line: N passed, N failed, N skipped.
# Ends at the first program that fails, so that one who stops it for its time knows that all was well.
set -uo pipefail
cd "$(dirname "$0")/.." || exit

# ONNX Runtime and LLVM are not instrumented; what they keep until exit is theirs.
# detect_stack_use_after_return stays off: it makes programs that copy many small values thirty times
# slower (base_test: 1.6 s of CPU without it, more than 43 s with it).
export ASAN_OPTIONS=detect_stack_use_after_return=0:strict_string_checks=1
export LSAN_OPTIONS=suppressions=$PWD/scripts/sanitizers/leaks.txt:print_suppressions=0
export UBSAN_OPTIONS=print_stacktrace=1
export TSAN_OPTIONS=suppressions=$PWD/scripts/sanitizers/threads.txt:history_size=4

fail() {
  echo "sanitizers: a program failed, see above"
  exit 1
}

# build_and_run <preset> <group>...  A program that a sanitizer complains about fails as a whole, even
# where each of its cases passed.
build_and_run() {
  local preset=$1 group
  shift
  rm -rf "build/$preset/test-results"
  mkdir -p "build/$preset/test-results"
  scripts/timed.sh "Build: $preset" scripts/build.sh "$preset" "${@/#/tests-}" || exit 1
  for group in "$@"; do
    scripts/timed.sh "Tests: $group under $preset" ctest --test-dir "build/$preset" -L "^$group\$" \
      -j "$(nproc)" --output-on-failure --stop-on-failure --no-tests=ignore \
      --output-junit "test-results/ctest-$group.xml" || fail
  done
}

build_and_run asan unit provider error
GTEST_FILTER='*Concurrent*' build_and_run tsan concurrent

.venv/bin/python scripts/summarize_tests.py build/asan/test-results build/tsan/test-results || fail
