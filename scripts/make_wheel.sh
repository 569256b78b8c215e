#!/bin/bash
# Packs the plugin of a build folder, the Python package and the licences of what is linked in into
# dist/*.whl: make_wheel.sh <build folder> [<output folder>]
set -euo pipefail
cd "$(dirname "$0")/.."

plugin=$1/lib/libonnxruntime_ep_tenon.so
output=$(realpath -m "${2:-dist}")
[ -f "$plugin" ] || { echo "make_wheel: $plugin is missing: run 'make build'" >&2; exit 1; }

# The tag is a promise about the oldest C library; tests/packaging holds the plugin to it.
machine=$(readelf -h "$plugin" | awk '/Machine:/ {print /AArch64/ ? "aarch64" : "x86_64"}')
tag=manylinux_2_34_$machine

stage=$(mktemp -d)
trap 'rm -rf "$stage"' EXIT
cp python/pyproject.toml python/setup.py python/README.md LICENSE "$stage"
cp -rL python/onnxruntime_ep_tenon "$stage"
find "$stage" -name __pycache__ -prune -exec rm -rf {} +
cp -L "$plugin" "$stage/onnxruntime_ep_tenon/"
# Where it was built. Gloo itself is the machine's.
gloo=$1/lib/libtenon_gloo.so
[ ! -f "$gloo" ] || cp -L "$gloo" "$stage/onnxruntime_ep_tenon/"
sed -nE 's/^project\(tenon VERSION ([0-9.]+).*/\1/p' CMakeLists.txt >"$stage/VERSION"

licenses=$stage/onnxruntime_ep_tenon/licenses
mkdir -p "$licenses"
cp LICENSE "$licenses/Tenon.txt"
for package in llvm-19-dev libstdc++-12-dev zlib1g-dev libzstd-dev libfmt-dev nlohmann-json3-dev; do
  cp "/usr/share/doc/$package/copyright" "$licenses/$package.txt"
done
[ ! -f "$gloo" ] || cp /usr/share/doc/libgloo-dev/copyright "$licenses/libgloo-dev.txt"
cp .deps/onnxruntime-headers.license "$licenses/onnxruntime-headers.txt"
# Debian's notes name the usual licences by file; the texts themselves have to travel along.
for license in Apache-2.0 GPL-3; do
  cp "/usr/share/common-licenses/$license" "$licenses/$license.txt"
done

mkdir -p "$output"
.venv/bin/pip wheel -q --disable-pip-version-check --no-deps --no-build-isolation -w "$output" \
  "--config-settings=--build-option=--plat-name=$tag" "$stage"
ls -l "$output"/onnxruntime_ep_tenon-*"$tag".whl
