from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from agent_runner.tools.registry import Toolbox, ToolContext, build_toolbox
from mailboxes.layout import Workspace


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    made = Workspace.below(tmp_path / "workspace")
    for folder in (made.inbound / "files", made.outbound, made.state, made.run, made.home):
        folder.mkdir(parents=True)
    return made


@pytest.fixture
async def toolbox(workspace: Workspace) -> AsyncIterator[Toolbox]:
    box = build_toolbox(ToolContext(workspace.home, workspace))
    yield box
    await box.close()
