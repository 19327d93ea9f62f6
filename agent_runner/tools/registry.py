"""Tools as plain typed functions: the JSON schema that a model sees is derived from the signature and the docstring.

Invariant: `Toolbox.call` never raises for what a model asked. Whatever goes wrong is text that starts with "Error:", so
that the model reads it and goes on.
"""

import asyncio
import inspect
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

from agent_runner.desk import Desk, DeskError
from mailboxes.layout import Workspace

ENTRY_POINTS = "innkeeper.tools"
BUILT_IN = tuple(f"agent_runner.tools.{name}" for name in ("workspace", "messages", "sessions", "tasks"))

MAX_OUTPUT = 50_000
"""Characters of one tool's answer; what is longer is cut, and the total is said (ledger R202)."""

_JSON_TYPES: dict[type, str] = {str: "string", int: "integer", float: "number", bool: "boolean"}


class ToolError(Exception):
    """A tool cannot do what was asked; the text is for the model."""


@dataclass(frozen=True, slots=True)
class ToolContext:
    """What every tool is given. `enabled` is False where no cage works: such a runner has no tools at all.
    `desk` is the way to the mailbox, None outside of a runner."""

    working_folder: Path
    workspace: Workspace
    enabled: bool = True
    desk: Desk | None = None


Handler = Callable[..., Awaitable[str]]


@dataclass(frozen=True, slots=True)
class Parameter:
    """One argument of a tool."""

    name: str
    type: type
    description: str
    required: bool


@dataclass(frozen=True, slots=True)
class Tool:
    """A registered tool. `speaks`: it sends messages to people by itself, so that a turn may end without text."""

    name: str
    description: str
    parameters: tuple[Parameter, ...]
    handler: Handler
    speaks: bool = False

    @property
    def schema(self) -> dict[str, Any]:
        """The tool in the shape of the Messages API."""
        properties = {p.name: {"type": _JSON_TYPES[p.type], "description": p.description} for p in self.parameters}
        return {
            "name": self.name,
            "description": self.description,
            "input_schema": {
                "type": "object",
                "properties": properties,
                "required": [p.name for p in self.parameters if p.required],
                "additionalProperties": False,
            },
        }

    def check(self, arguments: object) -> dict[str, Any]:
        """The arguments, checked. Raises ToolError that names each fault."""
        if not isinstance(arguments, dict):
            raise ToolError(f"they must be an object, not {type(arguments).__name__}")
        known = {p.name for p in self.parameters}
        faults = [f"there is no argument {name!r}" for name in arguments if name not in known]
        faults += [f"{p.name!r} is missing" for p in self.parameters if p.required and p.name not in arguments]
        faults += [
            f"{p.name!r} must be of type {_JSON_TYPES[p.type]}"
            for p in self.parameters
            if p.name in arguments and not _fits(arguments[p.name], p.type)
        ]
        if faults:
            raise ToolError("; ".join(faults))
        return arguments


def _fits(value: object, wanted: type) -> bool:
    if isinstance(value, bool):
        return wanted is bool
    return isinstance(value, int | float) if wanted is float else isinstance(value, wanted)


_registered: dict[str, Tool] = {}


def tool(*, speaks: bool = False) -> Callable[[Handler], Handler]:
    """Registers ``async def name(context: ToolContext, argument: Annotated[str, "what it is"], ...) -> str``.

    Raises TypeError for an argument without an annotated description or with a type that has no JSON form, and
    ValueError for a name that is taken: both are faults of the author, seen at import.
    """

    def register(handler: Handler) -> Handler:
        made = _from_function(handler, speaks)
        if made.name in _registered and _registered[made.name].handler is not handler:
            raise ValueError(f"there are two tools named {made.name!r}")
        _registered[made.name] = made
        return handler

    return register


def _from_function(handler: Handler, speaks: bool) -> Tool:
    hints = get_type_hints(handler, include_extras=True)
    name: str = handler.__name__
    parameters = []
    for argument in list(inspect.signature(handler).parameters.values())[1:]:
        hint = hints[argument.name]
        kind, *notes = get_args(hint) if get_origin(hint) is not None else (hint,)
        if kind not in _JSON_TYPES or not notes or not isinstance(notes[0], str):
            raise TypeError(f"argument {argument.name!r} of tool {name!r} needs Annotated[str|int|float|bool, 'text']")
        parameters.append(Parameter(argument.name, kind, notes[0], argument.default is inspect.Parameter.empty))
    return Tool(name, inspect.getdoc(handler) or "", tuple(parameters), handler, speaks)


def desk_of(context: ToolContext) -> Desk:
    """The way to the mailbox. Raises ToolError where there is none."""
    if context.desk is None:
        raise ToolError("there is no mailbox here")
    return context.desk


async def asked(context: ToolContext, action: str, **arguments: object) -> str:
    """What the host answers to an action, as JSON; arguments that are empty or 0 are not said. Raises DeskError."""
    given = {name: value for name, value in arguments.items() if value not in ("", 0)}
    return json.dumps(await desk_of(context).request(action, given), ensure_ascii=False)


def clip(text: str, limit: int = MAX_OUTPUT, total: int | None = None) -> str:
    """The text within `limit` characters; if it was cut, its end says how many there were (`total`, where given)."""
    total = len(text) if total is None else total
    if total <= limit:
        return text
    note = f"\n... [cut: {total} characters in total]"
    return text[: limit - len(note)] + note


class Toolbox:
    """The tools of one session. Calls may run side by side; `close` ends those that run."""

    def __init__(self, context: ToolContext, tools: dict[str, Tool]) -> None:
        self._context = context
        self._tools = tools
        self._running: set[asyncio.Task[str]] = set()

    def schemas(self) -> list[dict[str, Any]]:
        """The tools in the shape of the Messages API, by name: the same bytes each time, for the prompt cache."""
        return [self._tools[name].schema for name in sorted(self._tools)]

    def speaks(self, name: str) -> bool:
        """Whether that tool sends messages to people by itself."""
        return name in self._tools and self._tools[name].speaks

    async def call(self, name: str, arguments: object) -> str:
        """Runs a tool and returns its answer, at most MAX_OUTPUT characters. Raises nothing but CancelledError when the
        caller itself is cancelled; the tool has ended by then."""
        found = self._tools.get(name)
        if found is None:
            return clip(f"Error: There is no tool {name!r}. The tools are: {', '.join(sorted(self._tools)) or 'none'}.")
        try:
            checked = found.check(arguments)
        except ToolError as fault:
            return clip(f"Error: Invalid arguments for {name}: {fault}.")
        task = asyncio.create_task(self._run(found, checked))
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        try:
            return clip(await task) or "[no output]"
        except asyncio.CancelledError:
            caller = asyncio.current_task()
            if caller is not None and caller.cancelling():
                raise
            return f"Error: {name} was stopped."

    async def _run(self, found: Tool, arguments: dict[str, Any]) -> str:
        try:
            return await found.handler(self._context, **arguments)
        except (ToolError, DeskError) as fault:
            return f"Error: {fault}"
        except OSError as fault:
            return f"Error: {fault.strerror or fault}"
        except Exception as fault:  # noqa: BLE001  a tool is foreign code: whatever it raises is the model's to read (R200)
            return f"Error: {name_of(fault)}: {fault}"

    async def close(self) -> None:
        """Ends every running call; returns when nothing of them runs."""
        running = list(self._running)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)


def name_of(fault: BaseException) -> str:
    """The kind of an error, for a sentence."""
    return type(fault).__name__


def build_toolbox(context: ToolContext) -> Toolbox:
    """The toolbox of a session: the built-in tools and those of installed packages (the entry-point group
    `innkeeper.tools`, each entry naming a module whose import registers its tools)."""
    if not context.enabled:
        return Toolbox(context, {})
    for module in BUILT_IN:
        import_module(module)
    for entry in entry_points(group=ENTRY_POINTS):
        entry.load()
    return Toolbox(context, dict(_registered))
