#!/bin/bash
# Puts the Python package into .venv as links to the tree, so that an edit needs no new installation:
# install_editable.sh <plugin library>
set -euo pipefail
cd "$(dirname "$0")/.."

ln -sfn "../../$1" "python/onnxruntime_ep_tenon/$(basename "$1")"

stamp=.venv/tenon-package
described=(python/pyproject.toml python/setup.py CMakeLists.txt)
if [ -x .venv/bin/tenon ] && cat "${described[@]}" | cmp -s - "$stamp"; then
  echo "the package is installed"
  exit
fi
.venv/bin/pip install -q --disable-pip-version-check --no-deps --no-build-isolation -e python
cat "${described[@]}" >"$stamp"
