# An image for machines with NVIDIA GPUs; without one it measures the processor.
# Python's slim image, not NVIDIA's CUDA one: PyTorch's packages bring their own CUDA, cuDNN and
# NCCL (4 GB), and would leave NVIDIA's unused. The driver comes from the host, by NVIDIA's
# container toolkit. docs/sweeps.md says how to build and run it.
FROM python:3.12.12-slim-bookworm

# git: a record holds the commit; a compiler: torch.compile makes kernels with it.
# Debian takes superseded versions off its mirrors, so a pinned one would end the build.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends git g++ libc6-dev \
    && rm -rf /var/lib/apt/lists/*

# the packages in a layer of their own: a change of the project does not fetch them again
WORKDIR /opt/mlproject
COPY requirements.txt .
# --compile: with its bytecode a start takes half of the time, whatever the environment says
RUN pip install --no-cache-dir --compile --requirement requirements.txt

# the whole clone with its .git, so that records name the commit and whether it was changed
COPY . .
RUN pip install --no-cache-dir --no-deps --no-build-isolation --editable . \
    && python -m compileall -q mlproject.py analysis bench campaigns commands tracking \
    && git config --system --add safe.directory /opt/mlproject

# what NVIDIA's toolkit looks at: every card, its libraries and nvidia-smi; and what records name
ARG IMAGE=mlproject
ENV NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility \
    HOME=/tmp \
    MLPROJECT_IMAGE=${IMAGE}

# any user may write here (`docker run --user`), so that records belong to whoever mounts it
RUN useradd --no-log-init --uid 1000 --no-create-home measurer \
    && install --directory --mode=1777 /results
USER 1000
WORKDIR /results
VOLUME /results

ENTRYPOINT ["mlproject"]
CMD ["--help"]
