#!/bin/bash
# Packs what a machine with a GPU needs into one file, dist/tenon-<version>-x86_64.tar.xz: plugin,
# Python package, test programs, tests and ./run. Cross-built where this machine is not x86_64.
set -euo pipefail
cd "$(dirname "$0")/.."

max_bytes=$((40 * 1000 * 1000))
preset=release strip=strip
if [ "$(uname -m)" != x86_64 ]; then
  preset=x86_64 strip=x86_64-linux-gnu-strip
  scripts/setup.sh --cross
fi
scripts/build.sh "$preset" onnxruntime_ep_tenon tests-gpu tests-multi_rank

version=$(sed -nE 's/^project\(tenon VERSION ([0-9.]+).*/\1/p' CMakeLists.txt)
name=tenon-$version-x86_64
stage=$(mktemp -d)
trap 'rm -rf "$stage"' EXIT
bundle=$stage/$name
mkdir -p "$bundle/bin" "$bundle/scripts" dist

# The wheel is the one place that knows what the package holds.
scripts/make_wheel.sh "build/$preset" "$stage/wheel" >/dev/null
.venv/bin/python -m zipfile -e "$stage"/wheel/*.whl "$bundle/python"
# Pure Python, so that it runs under whichever interpreter the machine has.
.venv/bin/pip install -q --disable-pip-version-check --target "$bundle/vendor" \
  "$(awk '$1 == "python" && $2 == "pytest" {print $2 "==" $3}' scripts/versions.txt)"

ctest --test-dir "build/$preset" --show-only=json-v1 | .venv/bin/python scripts/list_test_programs.py \
  gpu multi_rank | xargs -r cp -t "$bundle/bin"
find "$bundle/bin" -type f -exec $strip {} +
# As in the tree, since tests start the examples from where they lie.
mkdir "$bundle/tests" "$bundle/examples"
cp -rL tests/python "$bundle/tests/python"
find tests/fuzz -name '*.py' ! -name 'test_*' -exec cp --parents -t "$bundle" {} +
cp -r examples/python "$bundle/examples/python"
install -D -m 644 -t "$bundle/docs" docs/options.md  # tests read its table
cp scripts/measure_cuts.py scripts/print_figures.py scripts/summarize_tests.py "$bundle/scripts/"
cp scripts/bundle_run.sh "$bundle/run"
find "$bundle" -name __pycache__ -prune -exec rm -rf {} +

# The test programs share most of their bytes (LLVM), which a dictionary longer than one of them finds.
file=dist/$name.tar.xz
tar -C "$stage" -c "$name" | xz --lzma2=preset=6,dict=192MiB >"$file"
size=$(stat -c %s "$file")
echo "$file: $size bytes"
[ "$size" -lt $max_bytes ] || { echo "make_bundle: over the limit of $max_bytes bytes" >&2; exit 1; }
