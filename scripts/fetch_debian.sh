#!/bin/bash
# Unpacks Debian packages into a folder without installing them and without touching this machine's
# apt configuration. Needs no root.
#
#   fetch_debian.sh <architecture> <suite> <folder> <package[=version]>...
#   fetch_debian.sh <architecture> <suite> --versions <package>
set -euo pipefail

architecture=$1 suite=$2 folder=$3
shift 3

# shellcheck disable=SC2016  # $(REPO_URI) is apt's own syntax
mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 'Label: Debian' | sort -u | head -1)
if [ -z "$mirror" ]; then
  echo "fetch_debian: apt has no package lists yet: run 'apt-get update' as root first" >&2
  exit 1
fi
keyring=$(dpkg -L debian-archive-keyring | grep -m1 'debian-archive-keyring\.gpg$')

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work"/lists/partial "$work"/cache/archives/partial "$work"/parts "$work"/debs
: >"$work/status"
echo "deb [arch=$architecture signed-by=$keyring] $mirror $suite main" >"$work/list"

# Signatures are checked; the date is not, because experimental's index is often past its own.
apt_options=(
  -o "Dir::Etc::SourceList=$work/list" -o "Dir::Etc::SourceParts=$work/parts"
  -o Dir::Etc::Preferences=/dev/null -o "Dir::Etc::PreferencesParts=$work/parts"
  -o "Dir::State=$work" -o "Dir::State::lists=$work/lists" -o "Dir::State::status=$work/status"
  -o "Dir::Cache=$work/cache" -o "APT::Sandbox::User=$(id -un)" -o "APT::Architecture=$architecture"
  -o "APT::Architectures=$architecture" -o Acquire::Languages=none -o Acquire::Check-Valid-Until=false
)
apt-get "${apt_options[@]}" -qq update

if [ "$folder" = --versions ]; then
  apt-cache "${apt_options[@]}" madison "$1" | awk -F'|' '{gsub(/ /, "", $2); print $2}'
  exit
fi

(cd "$work/debs" && apt-get "${apt_options[@]}" -qq download "$@")
mkdir -p "$folder"
for deb in "$work"/debs/*.deb; do
  dpkg -x "$deb" "$folder"
done
