#!/bin/sh
# Creates folders with Pythons of Debian that this machine lacks, for `make wheels`, `make
# test-aarch64` and `make test-install`; only those that it is given, if it is given names:
#
#   .make/roots/x86_64-3.14    Debian sid with g++, to run with tools/in_root.sh
#   .make/roots/aarch64-3.*    Pythons for aarch64, to run with qemu-aarch64
#   .make/roots/x86_64-musl-3.11   Python for musl, which tools/musl_python.sh builds
#
# Needs root, mmdebstrap and musl-tools. Folders that exist are kept. DEBIAN names another mirror.
set -eu
tools="$(dirname "$0")"
roots="$tools/../.make/roots"
mirror="${DEBIAN:-$(cat /etc/apt/sources.list /etc/apt/sources.list.d/* 2>/dev/null |
  grep -oE 'https?://[^ ]+/debian/?( |$)' | head -n 1)}"
mirror="${mirror:-http://deb.debian.org/debian}"
mkdir -p "$roots"
chosen="$*"

is_wanted() { # NAME
  case " ${chosen:-$1} " in *" $1 "*) [ ! -e "$roots/$1/complete" ] ;; *) return 1 ;; esac
}

root() { # NAME SUITE PACKAGES OPTIONS...
  name=$1 suite=$2 packages=$3
  shift 3
  is_wanted "$name" || return 0
  rm -rf "${roots:?}/$name"
  # Snapshots of sid are used for longer than their Release files are valid.
  mmdebstrap --quiet --aptopt='Acquire::Check-Valid-Until "false";' --include="$packages" "$@" \
    "$suite" "$roots/$name" "$mirror"
  # Packages of a merged /usr leave the links in the root to one that is not unpacked alone.
  [ -e "$roots/$name/lib" ] || ln -s usr/lib "$roots/$name/lib"
  touch "$roots/$name/complete"
  echo "$name: $(ls "$roots/$name"/usr/bin/python3.??)"
}

root x86_64-3.14 sid python3,python3-venv,python3-dev,ca-certificates,g++,make,git --variant=minbase
for python in 3.11:bookworm 3.13:trixie 3.14:sid; do
  root "aarch64-${python%:*}" "${python#*:}" python3,libstdc++6 --variant=extract --arch=arm64
done
musl="$(uname -m)-musl-3.11"
if is_wanted "$musl"; then
  "$tools/musl_python.sh" "$roots/$musl" "$mirror"
  touch "$roots/$musl/complete"
fi
