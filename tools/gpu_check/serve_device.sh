#!/bin/sh
# The device suite on a machine with a GPU, PyTorch and Triton but without our other packages.
#
#     sh tools/gpu_check/serve_device.sh [pytest arguments]     # by default all of tests/device
#
# Wheels in $WHEELS (.wheels) are installed without a network into $SITE, which nothing else sees. LIMIT is in
# seconds; JUnit and the whole output go to $OUT. Fill .wheels where there is a network:
#     pip download -d .wheels --no-deps --only-binary=:all: --python-version 3.12 --implementation cp \
#         --platform manylinux_2_28_x86_64 --platform manylinux2014_x86_64 NAME==VERSION ...
# with sanic, sanic-routing, httptools, multidict, aiofiles, html5tagger, tracerite, websockets, ujson, uvloop,
# setuptools, jiter, msgspec, jinja2, markupsafe, prometheus-client, tokenizers, typing_extensions, pytest,
# pytest-timeout, pluggy, iniconfig, packaging, pygments (numba, numpy, hypothesis and pyyaml are on the machine).
set -u
OUT=${OUT:-/tmp/device-out} SITE=${SITE:-/tmp/device-site} LIMIT=${LIMIT:-300} WHEELS=${WHEELS:-.wheels}
mkdir -p "$OUT"
if ls "$WHEELS"/*.whl >/dev/null 2>&1 && [ ! -e "$SITE/.complete" ]; then
    python3 -m pip install -q --no-index --no-deps --no-compile --no-cache-dir --upgrade \
        --target "$SITE" "$WHEELS"/*.whl && touch "$SITE/.complete" || exit 3
fi
export PYTHONPATH="$SITE:." PYTHONUNBUFFERED=1 PYTEST_DISABLE_PLUGIN_AUTOLOAD=1
[ $# -gt 0 ] || set -- tests/device
timeout -k 10 "$LIMIT" python3 -P -m pytest -s -q -rA --tb=short --durations=30 -p no:cacheprovider -p pytest_timeout -W default \
    --junitxml="$OUT/device.xml" "$@" >"$OUT/device.log" 2>&1
status=$?
# The table: what tests printed, outcomes, durations; failures in full stand in the log.
grep -E '^(PASSED|FAILED|ERROR|SKIPPED|E  |[0-9.]+s |[0-9]+ (passed|failed|skipped))|^(stated|rounds of|graphs|cpu|0:|\()|CUDA_CHECK|passed|failed' \
    "$OUT/device.log" | cut -c1-300
echo "status=$status (124: out of time)"
exit $status
