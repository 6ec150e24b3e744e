# Build with `make image` (docker, podman or buildah), for the machine's own architecture or any other: nothing below
# depends on it, and the BPF objects in the wheel are for x86-64 and arm64 both.
#
# It needs, at run time (docker run / podman run; the same in Kubernetes' words):
#   --pid host                       the processes it observes, hostPID: true
#   --uts host                       the machine's name in OTLP (in Kubernetes NODE_NAME from spec.nodeName)
#   --cgroupns host                  which container a process belongs to
#   --cap-drop ALL and --cap-add of those in the label below (uid 0 stays: engines give capabilities to no other user);
#                                    before Linux 6.6 CAP_SYS_ADMIN besides
#   --security-opt seccomp=unconfined   only where the engine's own profile allows bpf() by CAP_SYS_ADMIN alone
#   --device /dev/kmsg               optional: the kernel log (Xids of a driver) by its device in place of syslog(2)
# No --privileged, no --network host, no engine socket.
# A release gives it by digest: --build-arg BASE=docker.io/library/debian@sha256:...
ARG BASE=docker.io/library/debian:bookworm-slim

FROM ${BASE} AS build
# pip's own settings, for builds behind a mirror or a proxy; none of them stays in the image.
ARG PIP_CERT
ARG PIP_INDEX_URL
ARG PIP_EXTRA_INDEX_URL
ARG REVISION
RUN apt-get update \
 && apt-get install --yes --no-install-recommends clang libbpf-dev libc6-dev llvm make python3-venv \
 && apt-get clean && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY LICENSE MANIFEST.in README.md pyproject.toml setup.py ./
COPY bpf bpf
COPY exporter exporter
COPY deploy/image/requirements.txt deploy/image/
# Locked versions with hashes, the build's own included; `pip check` fails where they are not what pyproject.toml wants.
# Compiled here, once: at each start it would take longer than everything else.
RUN python3 -m venv /opt/accel-exporter \
 && /opt/accel-exporter/bin/pip install --no-cache-dir --no-compile --require-hashes -r deploy/image/requirements.txt \
 && /opt/accel-exporter/bin/pip install --no-cache-dir --no-compile --no-build-isolation --no-deps . \
 && /opt/accel-exporter/bin/pip check \
 && /opt/accel-exporter/bin/pip uninstall --yes --quiet pip setuptools \
 && /opt/accel-exporter/bin/python -m compileall -q --invalidation-mode unchecked-hash /opt/accel-exporter/lib

FROM ${BASE}
RUN apt-get update \
 && apt-get install --yes --no-install-recommends freeipmi-tools libbpf1 libdw1 python3 \
 && apt-get clean && rm -rf /var/lib/apt/lists/*
COPY --from=build /opt/accel-exporter /opt/accel-exporter
ENV PATH=/opt/accel-exporter/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
LABEL org.opencontainers.image.title="accel-exporter" \
      org.opencontainers.image.description="What accelerator jobs do and the state of the hardware they run on, as metrics and spans" \
      org.opencontainers.image.licenses="Apache-2.0 AND (Apache-2.0 OR GPL-2.0-only)" \
      accel-exporter.capabilities="BPF PERFMON SYS_PTRACE DAC_READ_SEARCH CHECKPOINT_RESTORE SYSLOG"
EXPOSE 19445
STOPSIGNAL SIGTERM
ENTRYPOINT ["accel-exporter"]
