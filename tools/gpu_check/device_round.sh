#!/bin/sh
# What a change of a GPU kernel needs on a device: laws and the campaign of two formats, then times.
#
#     OUT=folder sh tools/gpu_check/device_round.sh [checks] [times] [tiles] [final] [copies] [proof]
#
# Checks run beside each other, times alone. Without arguments: checks, times and tiles; "final" are the cells of
# the targets, "copies" rounds of copies and their laws, "proof" the op table, every law, fault and case. Each run
# has a limit.
set -u
OUT=${OUT:-/tmp/device-out} SITE=${SITE:-/tmp/device-site} WHEELS=${WHEELS:-.wheels}
mkdir -p "$OUT"
if ls "$WHEELS"/*.whl >/dev/null 2>&1 && [ ! -e "$SITE/.complete" ]; then
    python3 -m pip install -q --no-index --no-deps --no-compile --no-cache-dir --upgrade \
        --target "$SITE" "$WHEELS"/*.whl && touch "$SITE/.complete" || exit 3
fi
# One module of ours writes safetensors, which nothing here does.
mkdir -p /tmp/stub/safetensors && touch /tmp/stub/safetensors/__init__.py
echo "def save_file(*a, **k): raise NotImplementedError" >/tmp/stub/safetensors/torch.py
export PYTHONPATH="$SITE:/tmp/stub:." PYTHONUNBUFFERED=1
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
        run 80 bf16 tools.gpu_check.cells 27B:bf16 --contexts 0,8192,65536 --profile --json "$OUT/bf16.json"
        run 40 nvfp4 tools.gpu_check.cells 27B:nvfp4 --contexts 8192 --batches 1 --verify "" --profile \
            --json "$OUT/nvfp4.json"
        run 90 copies tools.gpu_check.speculation cell --size 27B --widths 15,31
        tail -n 60 "$OUT/bf16.log" "$OUT/nvfp4.log" "$OUT/copies.log" | cut -c1-200
        ;;
    copies)
        run 60 ops_carry tools.gpu_check.ops --only carry --only rows --only select
        run 120 copies tools.gpu_check.speculation cell --size 27B --widths 15,31
        run 120 copies_penalties tools.gpu_check.speculation cell --size 27B --widths 15,31 --penalties --default-mode
        run 60 verify_laws tools.gpu_check.speculation laws --sizes heads &
        run 60 verify_default tools.gpu_check.speculation laws --sizes heads --default-mode &
        run 60 worker tools.gpu_check.worker --only speculation &
        wait
        tail -n 14 "$OUT"/ops_carry.log "$OUT"/copies*.log "$OUT"/verify_*.log "$OUT"/worker.log | cut -c1-400
        ;;
    proof)
        # Alone and first: its processes take as much memory as there is.
        run 120 ops tools.gpu_check.ops --json "$OUT/ops.json"
        tail -n 40 "$OUT/ops.log" | cut -c1-120
        # Two at a time: each makes the vocabulary of 27B in float64.
        (run 110 laws_bf16 tools.gpu_check.laws --weights bf16; run 110 laws_q4 tools.gpu_check.laws --weights q4) &
        (run 110 laws_fp8 tools.gpu_check.laws --weights fp8,q6,q5
            run 110 laws_nvfp4 tools.gpu_check.laws --weights nvfp4,q8) &
        run 110 verify_laws tools.gpu_check.speculation laws --sizes heads &
        run 110 verify_int8 tools.gpu_check.speculation laws --sizes heads-moe --kv int8 &
        run 110 worker tools.gpu_check.worker --only speculation &
        run 110 drawn tools.gpu_check.drawn --seconds 24 &
        run 110 faults tools.gpu_check.faults &
        for cases in "q8 bf16:q6 bf16" "q5 bf16:fp8 bf16" "heads bf16 bf16:heads nvfp4 bf16" "bf16 int8:bf16 fp8" \
            "bf16 nvfp4:bf16 k8v4" "heads q4:moe bf16" "moe q4:moe nvfp4"; do
            name=$(echo "campaign_$cases" | tr ' :' '__')
            run 110 "$name" tools.gpu_check.campaign --rounds 830 --case "${cases%:*}" --case "${cases#*:}" &
        done
        wait
        tail -n 9 "$OUT"/laws_*.log "$OUT"/verify_*.log "$OUT"/worker.log "$OUT"/drawn.log | cut -c1-200
        tail -n 18 "$OUT/faults.log"
        cat "$OUT"/campaign_*.log | cut -c1-200
        ;;
    esac
done
cat "$OUT/status"
