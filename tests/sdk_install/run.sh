#!/bin/bash
# run.sh CMAKE BUILD SOURCE PYTHON CXX CUDA: installs the build into a scratch prefix and does there what docs/plugin-authors.md tells a stranger.
# CUDA is ON where the build found nvcc: then plugins built outside of the tree must find it too.
set -euo pipefail
cmake=$1 build=$2 source=$3 python=$4
export CXX=$5
cuda=$6
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
step() { echo "== $*"; }
fail() { echo "FAILED: $*"; exit 1; }
# has_gpu_code LIBRARY ON|OFF: machine code for a GPU is in it, or it was left out and `plan` says so (QEP-107).
has_gpu_code() {
  "$qengine" plugin check "$1" --only QEP-107 --notes > code.log || { cat code.log; fail "$1: QEP-107"; }
  if [ "$2" = ON ]; then grep -q "device code: .*sm[0-9]" code.log && ! grep -q skip code.log || { cat code.log; fail "$1 has no code for a GPU, and nvcc is there"; }
  else grep -q "built without its CUDA part, and plan says so" code.log || { cat code.log; fail "$1: not what a build without CUDA looks like"; }; fi
}

step "install into a prefix"
"$cmake" --install "$build" --prefix "$scratch/prefix" > "$scratch/install.log" || { cat "$scratch/install.log"; fail "install"; }
qengine=$scratch/prefix/bin/qengine
# nothing of the source tree may be needed from here on
cp -r "$source/sdk/examples/hqq" "$scratch/hqq"
cp -r "$source/tests/golden/tiny-qwen3" "$scratch/model"
cd "$scratch"
grep -rqi hqq "$source/core" "$source/apps" && fail "core or apps know the example by name"

step "the example: build against the installed SDK"
"$cmake" -S hqq -B hqq/build -D CMAKE_PREFIX_PATH="$scratch/prefix" > hqq.log && "$cmake" --build hqq/build -j 2 >> hqq.log || { cat hqq.log; fail "the example does not build"; }

has_gpu_code hqq/build/plugins/hqq.so "$cuda"

step "the example: the conformance kit, on a checkpoint with golden rows too"
"$python" hqq/make_checkpoint.py model tiny-hqq
"$python" - <<'PY'
import json
cases = json.load(open("hqq/check.json"))
cases["cases"].append({"name": "a model", "model": "../tiny-hqq"})
json.dump(cases, open("hqq/check.json", "w"))
PY
"$qengine" plugin check hqq/build/plugins/hqq.so --cases hqq/check.json --notes > check.log || { cat check.log; fail "the example does not pass the kit"; }
grep -q "rows equal bit for bit" check.log || { cat check.log; fail "no golden row was compared"; }

step "the example: refused untrusted, then trusted by its hash, then answers"
if "$qengine" run --plugin-path hqq/build/plugins --plugin hqq --model tiny-hqq --prompt "The" --max-tokens 8 --temperature 0 > untrusted.log 2>&1; then fail "an untrusted plugin ran"; fi
grep -q E302 untrusted.log || { cat untrusted.log; fail "the refusal does not say E302"; }
printf 'schema = 1\n' > my.toml
"$qengine" plugin trust hqq/build/plugins/hqq.so --yes --config my.toml
"$qengine" run --config my.toml --plugin-path hqq/build/plugins --model tiny-hqq --prompt "The" --max-tokens 16 --temperature 0 > answer.log 2> answer.err || { cat answer.err; fail "no answer"; }
[ -s answer.log ] || fail "an empty answer"
"$qengine" inspect --config my.toml --plugin-path hqq/build/plugins --model tiny-hqq > inspect.log
grep -q "hqq:w4g64" inspect.log || { cat inspect.log; fail "the layers are not hqq's"; }

step "a generated project: build, test"
"$qengine" plugin new my_format --vendor "Somebody" > new.log
if "$qengine" plugin new my_format > /dev/null 2>&1; then fail "plugin new wrote over a project"; fi
"$cmake" -S my_format -B my_format/build -D CMAKE_PREFIX_PATH="$scratch/prefix" > my.log && "$cmake" --build my_format/build -j 2 >> my.log || { cat my.log; fail "the generated project does not build"; }
ctest=$(dirname "$cmake")/ctest
"$ctest" --test-dir my_format/build --output-on-failure --no-tests=error > my_test.log || { cat my_test.log; fail "the generated project's tests"; }
grep -q "my_format_conformance" my_test.log || { cat my_test.log; fail "the kit did not run"; }
has_gpu_code my_format/build/plugins/my_format.so "$cuda"

if [ "$cuda" = ON ]; then
  step "the same project where nvcc is not"
  "$cmake" -S my_format -B my_format/cpu -D CMAKE_PREFIX_PATH="$scratch/prefix" -D QE_CUDA=OFF > my.log && "$cmake" --build my_format/cpu -j 2 >> my.log || { cat my.log; fail "the generated project does not build without CUDA"; }
  has_gpu_code my_format/cpu/plugins/my_format.so OFF
fi
echo "all steps passed"
