#!/bin/bash
# Runs every test of this bundle that the machine can run, with the machine's own Python and its
# onnxruntime, and closes with one line: N passed, N failed, N skipped. PYTHON names another interpreter.
set -uo pipefail
cd "$(dirname "$0")" || exit

python=${PYTHON:-python3}
runtime=$("$python" -c 'import pathlib, onnxruntime
print(next(pathlib.Path(onnxruntime.__file__).parent.glob("capi/libonnxruntime.so.*"), ""))') || {
  echo "run: $python has no onnxruntime; install it, or set PYTHON to an interpreter that has it" >&2
  exit 1
}
results=results
rm -rf $results
mkdir -p $results

export PYTHONPATH=$PWD/python:$PWD/vendor
export TENON_LIBRARY_PATH=$PWD/python/onnxruntime_ep_tenon/libonnxruntime_ep_tenon.so
export TENON_TEST_ONNXRUNTIME=$runtime
"$python" -m onnxruntime_ep_tenon doctor

expected=()
for program in bin/*; do
  [ -x "$program" ] || continue
  name=$(basename "$program")
  echo "== $name"
  "$program" --gtest_brief=1 "--gtest_output=xml:$results/$name.xml"
  expected+=("$name")
done

if "$python" -c 'import onnx, ml_dtypes' 2>/dev/null; then
  echo "== python"
  "$python" -m pytest -q -p no:cacheprovider tests "--junitxml=$results/python.xml"
  expected+=(python)
else
  echo "== python: left out, since it needs the packages onnx and ml_dtypes"
fi

"$python" scripts/summarize_tests.py $results --expect "${expected[@]}"
