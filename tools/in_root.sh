#!/bin/sh
# Runs a command in a folder of tools/roots.sh, with this repository, /tmp and the network of this
# machine, in the current folder:
#
#   tools/in_root.sh .make/roots/x86_64-3.14 python3.14 -m venv /tmp/v
#
# Needs root.
set -eu
root="$(realpath "$1")"
repository="$(realpath "$(dirname "$0")/..")"
shift
exec unshare --mount --propagation private sh -euc '
  root=$1 repository=$2 folder=$3
  shift 3
  for name in proc dev sys tmp etc/ssl; do
    mkdir -p "$root/$name"
    mount --rbind "/$name" "$root/$name"
  done
  touch "$root/etc/resolv.conf"
  mount --bind /etc/resolv.conf "$root/etc/resolv.conf"
  mkdir -p "$root$repository"
  mount --rbind "$repository" "$root$repository"
  PATH="$PATH:/usr/sbin:/sbin"
  exec chroot "$root" sh -euc "cd \"\$1\"; shift; exec \"\$@\"" sh "$folder" "$@"
' sh "$root" "$repository" "$PWD" "$@"
