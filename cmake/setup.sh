#!/usr/bin/env bash
# Installs the packages of packages.txt that are missing; quiet when none is.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
mapfile -t wanted < <(grep -v '^#' "$here/packages.txt")

if ! command -v dpkg-query >/dev/null; then
  echo "setup: this system has no dpkg; install the equivalents of these packages, then run cmake --preset dev:" >&2
  echo "  ${wanted[*]}" >&2
  exit 0
fi
missing=()
for p in "${wanted[@]}"; do
  dpkg-query -W -f '${Status}' "$p" 2>/dev/null | grep -q 'ok installed' || missing+=("$p")
done
[ ${#missing[@]} -eq 0 ] && exit 0

as_root=()
if [ "$(id -u)" -ne 0 ]; then
  if command -v sudo >/dev/null && { sudo -n true 2>/dev/null || [ -t 0 ]; }; then
    as_root=(sudo)
  else
    echo "setup: these packages are missing, and there is no way to become root here:" >&2
    echo "  ${missing[*]}" >&2
    echo "setup: ask an administrator for: apt-get install ${missing[*]}" >&2
    exit 1
  fi
fi
echo "setup: installing ${missing[*]}"
export DEBIAN_FRONTEND=noninteractive
"${as_root[@]}" apt-get update -qq
"${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
