# An engine's image with the client in it, from the wheel that tools/package.sh makes:
#
#   docker build -f deploy/container/engine.Dockerfile -t vllm-dws:0.32.0 \
#     --build-arg ENGINE=vllm/vllm-openai:v0.32.0 dist
#   docker build -f deploy/container/engine.Dockerfile -t sglang-dws:0.5.23 \
#     --build-arg ENGINE=lmsysorg/sglang:v0.5.23 dist
ARG ENGINE
FROM ${ENGINE}
RUN --mount=type=bind,target=/packages python3 -m pip install --no-cache-dir /packages/delta_weight_sync-*.whl
