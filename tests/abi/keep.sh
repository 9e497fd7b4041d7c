#!/bin/bash
# keep.sh PREFIX: builds what tests/abi/kept keeps of the minor that is installed under PREFIX (make install), by gcc and clang:
#
#   toy, toy_kv   the bare C header (tests/core/plugin_host/plugins)
#   sdk_w4        the C++ layer of the SDK: the project that `qengine plugin new` writes, with its manifest and cases for the kit
#
# What is there already stays: a kept file is never built again. Writes SHA256SUMS anew.
set -euo pipefail
prefix=$(cd "$1" && pwd)
root=$(cd "$(dirname "$0")/../.." && pwd)
number() { sed -nE "s/.*QE_ABI_$1 = ([0-9]+).*/\1/p" "$prefix/include/qe/plugin.h" | head -1; }
out=$root/tests/abi/kept/$(number MAJOR).$(number MINOR)
mkdir -p "$out"
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
for compiler in "gcc g++" "clang clang++"; do
  read -r cc cxx <<< "$compiler"
  for toy in toy toy_kv; do
    [ -e "$out/$toy-$cc.so" ] && continue
    "$cc" -std=c11 -Os -s -fPIC -shared -fvisibility=hidden -I"$prefix/include" "$root/tests/core/plugin_host/plugins/$toy.c" -lm \
      -Wl,--version-script="$root/sdk/cmake/plugin.version" -Wl,--build-id=none -o "$out/$toy-$cc.so"
  done
  [ -e "$out/sdk_w4-$cc.so" ] && continue
  # The library's name is its target's: built as sdk_w4-gcc.so, so that the manifest names it.
  "$prefix/bin/qengine" plugin new sdk_w4 --id test.sdk_w4 --vendor "Kept" --folder "$scratch/$cc" > /dev/null
  sed -i "s/qe_add_plugin(sdk_w4 /qe_add_plugin(sdk_w4-$cc /" "$scratch/$cc/CMakeLists.txt"
  CC=$cc CXX=$cxx cmake -S "$scratch/$cc" -B "$scratch/$cc/build" -D CMAKE_PREFIX_PATH="$prefix" -D QE_CUDA=OFF -D BUILD_TESTING=OFF \
    -D CMAKE_MODULE_LINKER_FLAGS="-s -Wl,--build-id=none -Wl,--gc-sections" -D CMAKE_CXX_FLAGS="-ffunction-sections -fdata-sections" > "$scratch/log"
  cmake --build "$scratch/$cc/build" -j 2 >> "$scratch/log" || { cat "$scratch/log"; exit 1; }
  cp "$scratch/$cc/build/plugins/sdk_w4-$cc".{so,qeplugin.toml} "$out"
  cp "$scratch/$cc/check.json" "$out/sdk_w4.check.json"
done
(cd "$root/tests/abi/kept" && sha256sum -- */*.so > SHA256SUMS)
ls -l "$out"
