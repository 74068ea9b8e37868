# Targets: `server` (the Triton server and the command line), `server-gpu` (the same with what builds
# GPU kernels), `gateway` (the OpenAI-compatible door), `perf` (the server's image with what
# perf_analyzer needs). BASE_IMAGE is Debian 12 for the CPU; for a GPU NVIDIA's Triton Inference
# Server image, nvcr.io/nvidia/tritonserver:24.11-py3 or newer.
ARG BASE_IMAGE=debian:bookworm-slim
ARG GATEWAY_BASE_IMAGE=debian:bookworm-slim

# The interpreter with its shared library: the server's Python stub links against it.
FROM ${BASE_IMAGE} AS python
RUN apt-get update \
    && DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends \
        python3 python3-venv \
    && DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends \
        "lib$(basename "$(readlink -f /usr/bin/python3)")" \
    && rm -rf /var/lib/apt/lists/*

# Dependencies change less often than the source: they make a layer of their own.
FROM python AS dependencies
# For example the index of CPU builds of torch, a tenth of the size of the usual ones.
ARG PIP_EXTRA_INDEX_URL=
WORKDIR /opt/canopy
RUN python3 -m venv .venv && .venv/bin/pip install --no-cache-dir "pip>=24.1" "setuptools>=77"
COPY pyproject.toml constraints.txt ./
COPY client/canopy_client/pyproject.toml client/canopy_client/
COPY deploy/pins.py deploy/
RUN .venv/bin/python deploy/pins.py ".[neural]" client/canopy_client > requirements.txt \
    && .venv/bin/pip install --no-cache-dir -r requirements.txt

FROM python AS server
RUN useradd --uid 10001 --create-home --home-dir /models canopy
COPY --from=dependencies /opt/canopy/.venv /opt/canopy/.venv
WORKDIR /opt/canopy
COPY . .
RUN .venv/bin/pip install --no-cache-dir --no-deps --no-build-isolation \
    --editable client/canopy_client --editable .
ENV PATH=/opt/canopy/.venv/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    CANOPY_HOME=/models \
    NUMBA_CACHE_DIR=/models/numba \
    TRITON_CACHE_DIR=/models/triton
USER canopy
VOLUME /models
EXPOSE 8000 8001 8002
ENTRYPOINT []
CMD ["canopy", "serve", "--config", "deploy/container.toml"]

# The compiler of GPU kernels (the Python package triton) builds its launchers in C when they are
# first used, against the headers of this Python.
FROM server AS server-gpu
USER root
RUN apt-get update \
    && DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends \
        gcc libc6-dev python3-dev \
    && rm -rf /var/lib/apt/lists/*
USER canopy
CMD ["canopy", "serve", "--config", "deploy/container-gpu.toml"]

FROM dependencies AS perf-dependencies
RUN .venv/bin/python deploy/pins.py ".[plots]" client/canopy_client > plots.txt \
    && .venv/bin/pip install --no-cache-dir -r plots.txt

FROM server AS perf
COPY --from=perf-dependencies /opt/canopy/.venv /opt/canopy/.venv
USER root
RUN install --directory --owner=canopy /results
RUN .venv/bin/pip install --no-cache-dir --no-deps --no-build-isolation \
    --editable client/canopy_client --editable .
USER canopy
CMD ["python", "-m", "bench", "perf_analyzer", "--server", "triton:8001"]

# The gateway knows the wire format only: no torch, no model.
FROM ${GATEWAY_BASE_IMAGE} AS gateway
RUN apt-get update \
    && DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends \
        python3 python3-venv \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --uid 10001 --create-home canopy
WORKDIR /opt/canopy
RUN python3 -m venv .venv && .venv/bin/pip install --no-cache-dir "pip>=24.1" "setuptools>=77"
COPY constraints.txt ./
COPY client client
RUN .venv/bin/pip install --no-cache-dir --constraint constraints.txt \
    ./client/canopy_client ./client/canopy_gateway
ENV PATH=/opt/canopy/.venv/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1
USER canopy
EXPOSE 8080
CMD ["canopy-gateway", "--host", "0.0.0.0", "--server", "triton:8001"]
