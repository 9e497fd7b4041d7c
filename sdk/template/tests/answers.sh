#!/bin/sh
# answers.sh QENGINE PYTHON PLUGINS MODEL: makes a tiny checkpoint in this format and computes with it, quickly and exactly.
set -e
"$2" "$(dirname "$0")/make_checkpoint.py" "$4"
for exact in "" --exact; do
  "$1" eval logits --model "$4" --plugin-path "$3" --trust any --prompt-ids 5,6,7,8 --output "$4/logits$exact.safetensors" $exact
done
"$1" inspect --model "$4" --plugin-path "$3" --trust any | grep "@NAME@:"
