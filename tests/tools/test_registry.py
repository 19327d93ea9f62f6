import asyncio
import json
from collections.abc import Iterator
from importlib import import_module
from typing import Annotated, Any

import pytest

from agent_runner.tools import registry
from agent_runner.tools.registry import MAX_OUTPUT, Toolbox, ToolContext, ToolError, build_toolbox, tool
from mailboxes.layout import Workspace


@pytest.fixture
def own_tools() -> Iterator[None]:
    for module in registry.BUILT_IN:  # imported now, or they would be forgotten with the test's own
        import_module(module)
    before = dict(registry._registered)
    yield
    registry._registered.clear()
    registry._registered.update(before)


def _box(workspace: Workspace) -> Toolbox:
    return build_toolbox(ToolContext(workspace.home, workspace))


def test_a_schema_is_derived_from_signature_and_docstring(workspace: Workspace, own_tools: None) -> None:
    @tool()
    async def greet(
        context: ToolContext, name: Annotated[str, "Whom to greet."], times: Annotated[int, "How often."] = 1
    ) -> str:
        """Greets somebody."""
        return name * times

    schema = next(s for s in _box(workspace).schemas() if s["name"] == "greet")
    assert schema == {
        "name": "greet",
        "description": "Greets somebody.",
        "input_schema": {
            "type": "object",
            "properties": {
                "name": {"type": "string", "description": "Whom to greet."},
                "times": {"type": "integer", "description": "How often."},
            },
            "required": ["name"],
            "additionalProperties": False,
        },
    }


def test_an_argument_without_a_description_is_refused_at_import(own_tools: None) -> None:
    async def bare(context: ToolContext, name: str) -> str:
        return name

    with pytest.raises(TypeError, match="argument 'name' of tool 'bare'"):
        tool()(bare)


def test_two_tools_of_one_name_are_refused_at_import(own_tools: None) -> None:
    def make() -> Any:
        async def twin(context: ToolContext) -> str:
            return ""

        return twin

    tool()(make())
    with pytest.raises(ValueError, match="two tools named 'twin'"):
        tool()(make())


def test_schemas_are_the_same_bytes_each_time_and_sorted(workspace: Workspace) -> None:
    first, second = _box(workspace).schemas(), _box(workspace).schemas()
    assert json.dumps(first) == json.dumps(second)
    assert [s["name"] for s in first] == sorted(s["name"] for s in first)


async def test_without_a_cage_there_are_no_tools(workspace: Workspace) -> None:
    box = build_toolbox(ToolContext(workspace.home, workspace, enabled=False))
    assert box.schemas() == []
    assert (await box.call("bash", {"command": "id"})).startswith("Error: There is no tool 'bash'.")


@pytest.mark.req("R202")
@pytest.mark.parametrize(
    ("arguments", "fault"),
    [
        ({}, "'command' is missing"),
        ({"command": 5}, "'command' must be of type string"),
        ({"command": "true", "timeout": True}, "'timeout' must be of type integer"),
        ({"command": "true", "cwd": "/"}, "there is no argument 'cwd'"),
        ("true", "they must be an object, not str"),
        (None, "they must be an object, not NoneType"),
    ],
)
async def test_bad_arguments_are_told_and_not_raised(toolbox: Toolbox, arguments: object, fault: str) -> None:
    assert await toolbox.call("bash", arguments) == f"Error: Invalid arguments for bash: {fault}."


@pytest.mark.req("R202")
async def test_an_unknown_tool_is_told_with_the_known_ones(toolbox: Toolbox) -> None:
    answer = await toolbox.call("fly", {})
    assert answer.startswith("Error: There is no tool 'fly'. The tools are: add_reaction, bash, cancel_task, ")


@pytest.mark.req("R200")
async def test_a_tool_that_raises_is_text_for_the_model(workspace: Workspace, own_tools: None) -> None:
    @tool()
    async def clumsy(context: ToolContext, how: Annotated[str, "How."]) -> str:
        raise {"foreign": KeyError("lost"), "own": ToolError("no such thing"), "system": OSError(13, "denied")}[how]

    box = _box(workspace)
    assert await box.call("clumsy", {"how": "foreign"}) == "Error: KeyError: 'lost'"
    assert await box.call("clumsy", {"how": "own"}) == "Error: no such thing"
    assert await box.call("clumsy", {"how": "system"}) == "Error: denied"


@pytest.mark.req("R202")
async def test_a_long_output_is_cut_and_its_length_said(workspace: Workspace, own_tools: None) -> None:
    @tool()
    async def chatty(context: ToolContext) -> str:
        return "x" * 60_000

    answer = await _box(workspace).call("chatty", {})
    assert len(answer) == MAX_OUTPUT
    assert answer.endswith("x\n... [cut: 60000 characters in total]")


async def test_close_ends_what_runs(workspace: Workspace, own_tools: None) -> None:
    started, ended = asyncio.Event(), asyncio.Event()

    @tool()
    async def endless(context: ToolContext) -> str:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
        return "never"

    box = _box(workspace)
    call = asyncio.create_task(box.call("endless", {}))
    await started.wait()
    await box.close()
    assert ended.is_set()
    assert await call == "Error: endless was stopped."


async def test_a_cancelled_caller_takes_its_tool_along(workspace: Workspace, own_tools: None) -> None:
    started, ended = asyncio.Event(), asyncio.Event()

    @tool()
    async def endless(context: ToolContext) -> str:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
        return "never"

    call = asyncio.create_task(_box(workspace).call("endless", {}))
    await started.wait()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert ended.is_set()


def test_an_installed_package_adds_its_tools(
    workspace: Workspace, own_tools: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Entry:
        def load(self) -> None:
            @tool()
            async def from_outside(context: ToolContext) -> str:
                return "hello"

    monkeypatch.setattr(registry, "entry_points", lambda group: [Entry()] if group == "innkeeper.tools" else [])
    assert "from_outside" in [s["name"] for s in _box(workspace).schemas()]
