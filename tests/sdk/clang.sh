#!/bin/bash
# clang.sh CMAKE BUILD SOURCE QENGINE: the SDK in the hands of somebody who builds with clang. Headers and example compile without a warning;
# the library holds what a plugin may, and its kernels' products are those of what it dequantizes.
set -euo pipefail
cmake=$1 build=$2 source=$3 qengine=$4
command -v clang > /dev/null && command -v clang++ > /dev/null || { echo "skipped: clang and clang++ are not installed"; exit 77; }
echo '#include <bit>' | clang++ -std=c++20 -x c++ -fsyntax-only - || { echo "skipped: clang++ finds no C++20 library"; exit 77; }
clang++ --version | head -1
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
cd "$scratch"
# quiet NAME COMMAND...: what it says goes to NAME.log, and is shown when it fails
quiet() { "${@:2}" > "$1.log" 2>&1 || { cat "$1.log"; echo "FAILED: $1"; exit 1; }; }

quiet install "$cmake" --install "$build/sdk" --prefix "$scratch/prefix"  # the SDK alone
(cd prefix/include && for header in qe/*.h qe/*.hpp qe/cpu/*.hpp; do echo "#include <$header>"; done) > all.cpp
quiet headers clang++ -std=c++20 -Wall -Wextra -Werror -Iprefix/include -fsyntax-only all.cpp &
headers=$!
cp -r "$source/sdk/examples/hqq" hqq
quiet configure "$cmake" -S hqq -B hqq/build -D CMAKE_PREFIX_PATH="$scratch/prefix" -D CMAKE_C_COMPILER=clang -D CMAKE_CXX_COMPILER=clang++ \
  -D CMAKE_CXX_FLAGS="-Wall -Wextra -Werror" -D QE_CUDA=OFF -D BUILD_TESTING=OFF
quiet build "$cmake" --build hqq/build -j 2
wait $headers
quiet check "$qengine" plugin check hqq/build/plugins/hqq.so --cases hqq/check.json --only binary,QEP-503,QEP-507
tail -1 check.log
