#!/usr/bin/env bash
# Makes a Python environment with the clients that the tests of the server use, and names the Debian packages of
# the others. Nothing here is needed to build qengine; without it these tests are skipped with a reason.
#
#   tests/serve/setup.sh [FOLDER]         default .cache/serve-clients; ctest finds it there
set -euo pipefail
folder=${1:-$(cd "$(dirname "$0")/../.." && pwd)/.cache/serve-clients}
python3 -m venv "$folder"
"$folder/bin/pip" install -q --disable-pip-version-check openai jsonschema "lm-eval[api]"
echo "$folder is ready"
for program in prometheus chromium; do
  command -v "$program" >/dev/null || echo "not here, its test will be skipped: $program (apt-get install $program)"
done
