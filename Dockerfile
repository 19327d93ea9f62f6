# The agent image: the runner, what it depends on, and nothing of the host's. `host build` makes it from an installed
# package as well as from a clone. For the classic builder; any base with python3 (3.11 or later) and its venv will do.
ARG BASE=python:3.13-slim
FROM ${BASE}

# Dependencies first: they change seldom, and the engine keeps this layer until they do. pip leaves again in the layer it
# came in, so that it takes no room.
COPY requirements-runner.lock /opt/innkeeper/requirements-runner.lock
RUN python3 -m venv /opt/innkeeper \
 && /opt/innkeeper/bin/python -m pip install --no-cache-dir --disable-pip-version-check --no-compile --only-binary=:all: \
        --require-hashes -r /opt/innkeeper/requirements-runner.lock \
 && /opt/innkeeper/bin/python -c "import pathlib, sysconfig; \
        pathlib.Path(sysconfig.get_path('purelib'), 'innkeeper.pth').write_text('/opt/innkeeper/src\n')" \
 && /opt/innkeeper/bin/python -m pip uninstall --yes --quiet --disable-pip-version-check setuptools pip \
 && /opt/innkeeper/bin/python -m compileall -q -j 0 /opt/innkeeper/lib \
 && mkdir -p /workspace/inbound /workspace/outbound /workspace/state /workspace/run /workspace/agent /workspace/extra

COPY mailboxes /opt/innkeeper/src/mailboxes
COPY agent_runner /opt/innkeeper/src/agent_runner
RUN /opt/innkeeper/bin/python -m compileall -q /opt/innkeeper/src

# Nobody's: the host names another at every start.
USER 65532:65532
WORKDIR /
ENTRYPOINT ["/opt/innkeeper/bin/python", "-I", "-m", "agent_runner"]
