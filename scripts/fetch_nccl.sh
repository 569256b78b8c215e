#!/bin/bash
# Brings the library of an engine for `./run --nccl FOLDER` and `./run --nvshmem FOLDER` to a machine
# that reaches nothing: from PyPI, compressed, in parts that travel one by one.
#
#   scripts/fetch_nccl.sh FOLDER            FOLDER/nccl.aa, nccl.ab, …
#   scripts/fetch_nccl.sh --nvshmem FOLDER  FOLDER/nvshmem.aa, …
#
# VERSION names another version than the newest, PART_BYTES another size than 52 MB.
set -euo pipefail
cd "$(dirname "$0")/.."

engine=nccl files=(libnccl.so.2)
if [ "${1:-}" = --nvshmem ]; then
  engine=nvshmem files=(libnvshmem_host.so.3 nvshmem_bootstrap_uid.so.3)
  shift
fi
folder=${1:?usage: scripts/fetch_nccl.sh [--nvshmem] FOLDER}
stage=$(mktemp -d)
trap 'rm -rf "$stage"' EXIT

platforms=()
for platform in manylinux_2_28 manylinux_2_27 manylinux_2_18 manylinux_2_17 manylinux2014; do
  platforms+=(--platform "${platform}_x86_64")
done
.venv/bin/python -m pip download -q --disable-pip-version-check --no-deps --only-binary=:all: \
  "${platforms[@]}" -d "$stage" "nvidia-$engine-cu13${VERSION:+==$VERSION}"
wheel=$(basename "$stage"/*.whl)
.venv/bin/python -m zipfile -e "$stage/$wheel" "$stage/wheel"

mkdir -p "$folder"
rm -f "$folder/$engine".??
tar -C "$stage/wheel/nvidia/$engine/lib" -c --owner=0 --group=0 "${files[@]}" | xz -1 -T2 |
  split -b "${PART_BYTES:-52000000}" - "$folder/$engine."
echo "$wheel, in $folder:"
(cd "$folder" && sha256sum "$engine".?? | tee "$engine.sha256")
