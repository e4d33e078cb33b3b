#!/bin/bash
# Runs what needs packages that Debian does not have, beside real daemons and on the CPU:
#
#   tools/real.sh install FOLDER [ENGINE]    makes the environments of vLLM and SGLang there, or of one: with pip, 3.5 GB each
#   tools/real.sh install FOLDER ENGINE RELEASE
#                                            another release of an engine that is there: in FOLDER/RELEASE, which --engines takes
#   tools/real.sh engines [OPTION...]        real vLLM and SGLang beside engines that were started with each version's checkpoint
#   tools/real.sh trainers [OPTION...]       real trainers (transformers.Trainer, FSDP, DeepSpeed, Megatron, TRL): an engine gets their bits
#   tools/real.sh verl --python=PYTHON       verl's own manager and workers with the checkpoint engine `dws`, under Ray
#   tools/real.sh capture [OPTION...]        the mappings that attaching makes, beside what engines load
#   tools/real.sh declare [OPTION...]        the tensors that dws.declare gives for a module, beside those that transformers saves
#   tools/real.sh quantise [OPTION...]       the quantisation recipes, beside the libraries that define them
#   tools/real.sh quickstart [OPTION...]     the programs of docs/quickstart: FSDP2, TRL, vLLM, and SGLang beside slime's folders
#   tools/real.sh store --python=PYTHON      a shared directory in a store of another project's: moto's, with boto3
#   tools/real.sh chains --python=PYTHON     versions that ModelExpress wrote to moto's S3, followed from a copy of the objects
#   tools/real.sh slime --source=FOLDER --python=PYTHON
#                                            slime's own reader, out of a checkout of THUDM/slime, and what several ranks' senders write
#   tools/real.sh kubernetes --python=PYTHON the manifests of deploy/kubernetes, beside Kubernetes' own schemas: with kubernetes-validate
#   tools/real.sh ray [OPTION...]            daemons beside the actors of a Ray cluster of several nodes on this machine: dws.ray
#   tools/real.sh page [--shots=FOLDER]      the page at / of both daemons in Debian's chromium, at 1 and 1,000 receivers
#   tools/real.sh demo [OPTION...]           a trainer and a real vLLM learn together; ends with a verdict
#
#   --engines=FOLDER     of `install`; $DWS_ENGINES by default. All but engines, capture and page use vLLM's environment there,
#   --python=PYTHON      or this Python: with what the check compares, numpy, grpcio and protobuf
#   --only=PATTERN,...   engines, trainers, capture, quickstart, ray: some cells or cases; none of the trainers' cases may be skipped then
#   --logs=FOLDER        engines, trainers, quickstart: keeps the logs
#   --all, --list        engines: all cells (hours); prints the cells that would run. By default 95 starts of engines
#   --compare            engines: engines attach with the option checkpoint, where their live memory is patched
#   --seconds=60         engines: of requests in each search for torn passes (20)
#   --minutes=30         engines: after which no cell begins (60)
#   --record=FILE        adds what the check finds, with day, commit and versions, to the file, as docs/ran.json
#   --shots=FOLDER       page: keeps what it looked like
#   --table=FILE         declare: writes docs/checkpoint-names.md there
#   --verbose            quantise: also how codes of NaN and infinity differ
#   --without-watch      ray: daemons do not look whether their owner lives, so it must fail
#   --steps=N, --warm-up=N, --seed=N, --limit=N, --stale-checkpoint
#                        demo: steps of policy gradient (50); supervised ones before (100); of everything random (1);
#                        seconds for all of it (900); compare with the version before the last, so it must fail
#
# A line for each cell or case: ok, FAILED or skipped, and why. The exit status is 0 when nothing failed: what is not there is
# skipped with a message, but a Python that --python names has to do. LD_LIBRARY_PATH and PYTHONPATH are for that Python alone.
set -euo pipefail
# shellcheck source=tools/shell/usage.sh
source "$(dirname "${BASH_SOURCE[0]}")/shell/usage.sh"

export REAL_CHECK_LIBRARIES="${LD_LIBRARY_PATH:-}" REAL_CHECK_MODULES="${PYTHONPATH:-}" REAL_CHECK_FOLDER="$PWD"
unset LD_LIBRARY_PATH PYTHONPATH
cd "$(dirname "${BASH_SOURCE[0]}")/.."
exec /usr/bin/python3 -B -m tools.real.main "$@"
