#!/usr/bin/env bash
# Builds the image with the first engine that answers: docker, podman, buildah. IMAGE names it, BASE sets another base.
set -euo pipefail
cd "$(dirname "$0")/../.."

options=(--tag "${IMAGE:-accel-exporter:latest}" --file Dockerfile
    --build-arg "REVISION=$(git rev-parse HEAD 2>/dev/null || true)")
for setting in BASE PIP_INDEX_URL PIP_EXTRA_INDEX_URL; do
    [ -z "${!setting:-}" ] || options+=(--build-arg "$setting")
done

if command -v docker >/dev/null && docker info >/dev/null 2>&1; then
    docker build "${options[@]}" .
elif command -v podman >/dev/null; then
    podman build "${options[@]}" .
elif command -v buildah >/dev/null; then
    buildah bud "${options[@]}" .
else
    echo "image: no docker engine answers, and neither podman nor buildah is installed." >&2
    echo "    apt-get install podman    (or: make image-check, which needs no engine and no registry)" >&2
    exit 1
fi
