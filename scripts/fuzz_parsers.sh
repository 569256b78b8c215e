#!/bin/bash
# Every parser under libFuzzer, ASan and UBSan, for so many seconds each: fuzz_parsers.sh <seconds>
# Needs clang and its run-time libraries (Debian: clang, libclang-rt-14-dev); says so and leaves
# without them. What it finds lies in build/fuzz/<parser>/.
set -euo pipefail
cd "$(dirname "$0")/.."
seconds=${1:-60}
probe=$(mktemp -d)
trap 'rm -rf "$probe"' EXIT
echo 'extern "C" int LLVMFuzzerTestOneInput(const char*, unsigned long) { return 0; }' >"$probe/probe.cc"
if ! clang++ -fsanitize=fuzzer,address "$probe/probe.cc" -o "$probe/probe" 2>/dev/null; then
  echo "fuzz: no clang with libFuzzer here; the parsers are left to their unit test"
  exit 0
fi

scripts/build.sh libfuzzer fuzzed-parsers
status=0
for program in build/libfuzzer/bin/fuzz_*; do
  name=${program##*/fuzz_}
  folder=build/fuzz/$name
  mkdir -p "$folder/corpus"
  "$program" --seeds "$folder/corpus"
  scripts/timed.sh "Fuzz: $name" "$program" -max_total_time="$seconds" -timeout=20 -rss_limit_mb=4096 \
    -max_len=1048576 -print_final_stats=1 -artifact_prefix="$folder/" "$folder/corpus" \
    2>"$folder/log.txt" || { status=1; tail -60 "$folder/log.txt"; }
  grep -h 'stat::number_of_executed_units' "$folder/log.txt" || true
done
exit $status
