# Tidegate without any application. Yours is two lines more:
#   FROM registry.example.com/tidegate:0.1.0
#   COPY shop/ shop/
# Two stages, so that nothing that builds is in what runs. Pin the base by its digest where you build:
# --build-arg BASE=python:3.11-slim-bookworm@sha256:…
ARG BASE=python:3.11-slim-bookworm

FROM ${BASE} AS build
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
WORKDIR /src
RUN python -m venv /opt/tidegate && python -m venv /opt/build
# What changes seldom comes first: a new line of code installs no package anew.
COPY requirements/run.txt requirements/build.txt requirements/
# Only what the lock knows by its hash, and only wheels: nothing of theirs is run while the image is built.
RUN /opt/tidegate/bin/pip install --require-hashes --only-binary :all: -r requirements/run.txt \
    && /opt/build/bin/pip install --require-hashes --only-binary :all: -r requirements/build.txt
COPY pyproject.toml README.md LICENSE CHANGELOG.md ./
COPY tidegate/ tidegate/
COPY tidegate_kernel/ tidegate_kernel/
COPY consumers/ consumers/
COPY inbox/ inbox/
COPY dlq/ dlq/
COPY projections/ projections/
RUN /opt/build/bin/pip wheel --no-deps --no-build-isolation --no-index --wheel-dir /wheels . \
    && /opt/tidegate/bin/pip install --no-deps --no-index --find-links /wheels tidegate \
    && /opt/tidegate/bin/pip check \
    && /opt/tidegate/bin/pip uninstall --yes pip setuptools

FROM ${BASE}
# Of tidegate/version.py, by scripts/chart_doc.py.
ARG VERSION=0.1.0
LABEL org.opencontainers.image.title="tidegate" \
    org.opencontainers.image.version="${VERSION}" \
    org.opencontainers.image.licenses="Apache-2.0"
# A number, because Kubernetes cannot tell whether a name is root. No shell, no home, nothing of its own to write to.
RUN groupadd --system --gid 10001 tidegate \
    && useradd --system --uid 10001 --gid tidegate --no-create-home --home-dir /nonexistent --shell /usr/sbin/nologin tidegate
COPY --from=build /opt/tidegate /opt/tidegate
# The root is read-only, and all modules are compiled: Python has nothing to write. The probes are asked from outside.
ENV PATH=/opt/tidegate/bin:$PATH PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1 TIDEGATE_HTTP_HOST=0.0.0.0
WORKDIR /app
USER 10001:10001
EXPOSE 9464
ENTRYPOINT ["tidegate"]
CMD ["--help"]
