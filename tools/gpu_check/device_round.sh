#!/bin/sh
# What a change of a GPU kernel needs on a device: laws and the campaign of two formats, then times.
#
#     OUT=folder sh tools/gpu_check/device_round.sh [checks] [times] [tiles] [final]
#
# Checks run beside each other, times alone. Without arguments: checks, times and tiles. Each part has a limit.
set -u
OUT=${OUT:-/tmp/device-out} SITE=${SITE:-/tmp/device-site} WHEELS=${WHEELS:-.wheels}
mkdir -p "$OUT"
if ls "$WHEELS"/*.whl >/dev/null 2>&1 && [ ! -e "$SITE/.complete" ]; then
    python3 -m pip install -q --no-index --no-deps --no-compile --no-cache-dir --upgrade \
        --target "$SITE" "$WHEELS"/*.whl && touch "$SITE/.complete" || exit 3
fi
export PYTHONPATH="$SITE:." PYTHONUNBUFFERED=1
[ $# -gt 0 ] || set -- checks times tiles
run() { # seconds, name, module and arguments
    limit=$1 name=$2 began=$(date +%s)
    shift 2
    timeout -k 5 "$limit" python3 -P -m "$@" >"$OUT/$name.log" 2>&1
    echo "rc=$? $name $(($(date +%s) - began)) s" >>"$OUT/status"
}
for part in "$@"; do
    case $part in
    checks)
        run 60 laws_bf16 tools.gpu_check.laws --weights bf16 &
        run 60 laws_nvfp4 tools.gpu_check.laws --weights nvfp4 &
        run 60 verify_laws tools.gpu_check.speculation laws --sizes heads &
        run 60 verify_int8 tools.gpu_check.speculation laws --sizes heads-moe --kv int8 &
        run 60 campaign_nvfp4 tools.gpu_check.campaign --rounds 60 --case "heads nvfp4" &
        run 60 campaign_kv tools.gpu_check.campaign --rounds 60 --case "bf16 bf16" --case "bf16 fp8" --case "bf16 k8v4" &
        run 60 worker tools.gpu_check.worker --only speculation &
        wait
        tail -n 12 "$OUT"/laws_*.log "$OUT"/verify_*.log "$OUT"/campaign_*.log "$OUT"/worker.log | cut -c1-220
        ;;
    times)
        run 75 rounds tools.gpu_check.tune_round 27B:bf16 --json "$OUT/rounds.json"
        tail -n 60 "$OUT/rounds.log"
        run 25 nvfp4 tools.gpu_check.cells 27B:nvfp4 --contexts 8192 --batches 1 --verify "" --prefill 0 --lanes 1 \
            --profile --json "$OUT/nvfp4.json"
        tail -n 20 "$OUT/nvfp4.log"
        ;;
    tiles)
        run 40 tune tools.gpu_check.tune --formats nvfp4 --shapes wide,gated,narrow,deep --json "$OUT/tune.json"
        tail -n 30 "$OUT/tune.log"
        ;;
    final)
        run 60 bf16 tools.gpu_check.cells 27B:bf16 --contexts 0,8192,65536 --prefill 0 --json "$OUT/bf16.json"
        run 25 nvfp4 tools.gpu_check.cells 27B:nvfp4 --contexts 8192 --batches 1 --verify "" --prefill 0 --lanes 1 \
            --json "$OUT/nvfp4.json"
        tail -n 20 "$OUT/bf16.log" "$OUT/nvfp4.log"
        ;;
    esac
done
cat "$OUT/status"
