"""The provider `scripted`, in a runner that gives a task's script a second and no more."""

import tests.runner.scripted  # noqa: F401  registers the provider
from agent_runner import scripts

scripts.TIMEOUT_SECONDS = 1
