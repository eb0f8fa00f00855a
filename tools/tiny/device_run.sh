#!/bin/sh
# One training run on a bare GPU machine: Python 3.12 with torch, Triton, tokenizers, safetensors, jinja2, pyyaml.
#
#   OUT=DIR sh tools/tiny/device_run.sh MINUTES [train options…]
#
# Run from the repository's root; nothing is installed, nothing is fetched. Leaves in $OUT: checkpoint.NN (at most
# 48 MiB in shards of at most 16 MiB), train.log. A run that is cut off leaves the checkpoint of its last measure.
set -eu
minutes=$1
shift
export PYTHONPATH=. PYTHONUNBUFFERED=1
nvidia-smi --query-gpu=name,memory.used,clocks.sm --format=csv,noheader || true
exec python3 -m tools.tiny.train --out "$OUT" --minutes "$minutes" "$@"
