#!/bin/bash
# Configures a preset and builds it: build.sh <preset> [ninja targets...]
set -euo pipefail
cd "$(dirname "$0")/.."
preset=$1
shift
cmake --preset "$preset" --no-warn-unused-cli --log-level=WARNING >/dev/null
ninja -C "build/$preset" "$@"
