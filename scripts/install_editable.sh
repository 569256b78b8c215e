#!/bin/bash
# Puts the Python package into .venv as links to the tree, so that an edit needs no new installation:
# install_editable.sh <plugin library>
set -euo pipefail
cd "$(dirname "$0")/.."

# What the plugin opens by name lies beside it, where it was built.
for library in "$1" "$(dirname "$1")/libtenon_gloo.so"; do
  link=python/onnxruntime_ep_tenon/$(basename "$library")
  if [ -f "$library" ]; then ln -sfn "../../$library" "$link"; else rm -f "$link"; fi
done

stamp=.venv/tenon-package
described=(python/pyproject.toml python/setup.py CMakeLists.txt)
if [ -x .venv/bin/tenon ] && cat "${described[@]}" | cmp -s - "$stamp"; then
  echo "the package is installed"
  exit
fi
.venv/bin/pip install -q --disable-pip-version-check --no-deps --no-build-isolation -e python
cat "${described[@]}" >"$stamp"
