# syntax=docker/dockerfile:1
# unisono with torch, for `unisono launch kubernetes`; put your script into an image made FROM this one.
#
#   docker build -t unisono .
#   docker build -t unisono --build-arg TORCH_INDEX=URL .      another build of torch (CPU, another CUDA)
FROM python:3.12-slim-bookworm AS build

ARG TORCH_INDEX=

WORKDIR /src
RUN python -m venv /opt/unisono
COPY constraints.txt ./
# torch first, and alone: it is most of the image, and changes least.
RUN version="$(sed -n 's/^torch==//p' constraints.txt)" \
    && /opt/unisono/bin/pip install --no-cache-dir ${TORCH_INDEX:+--index-url "$TORCH_INDEX"} "torch==$version"
COPY pyproject.toml README.md LICENSE ./
COPY src ./src
RUN /opt/unisono/bin/pip install --no-cache-dir -c constraints.txt '.[recipes]'

FROM python:3.12-slim-bookworm

# The numbers that `unisono launch kubernetes` asks for; only /runs is theirs to write.
RUN groupadd --gid 1000 unisono \
    && useradd --uid 1000 --gid 1000 --create-home unisono \
    && install -d -o 1000 -g 1000 /runs \
    && install -d /app
COPY --from=build /opt/unisono /opt/unisono
ENV PATH=/opt/unisono/bin:$PATH \
    PYTHONUNBUFFERED=1
WORKDIR /app
USER 1000:1000
CMD ["unisono", "--help"]
