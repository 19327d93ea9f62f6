from tests.runtime.conftest import (  # noqa: F401  the sandboxes of the runtime tests, attacked here
    agent_image,
    containers,
    installation,
    logs,
    make_spec,
    processes,
    root,
    runtime,
    spec,
)
