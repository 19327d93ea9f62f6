"""`host`, also called `innkeeper`: reads its own options, finds the command, and turns its end into an exit code.

`host --help` and `host status` answer at once: they are done here without click, which is imported for every other
command.
"""

import json
import os
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from host.failure import EXIT_CODES, Code, Failure

if TYPE_CHECKING:
    from host.cli.invocation import Invocation


class Entry(NamedTuple):
    """A command of the help, known without importing it."""

    section: str
    summary: str


COMMANDS = {
    "setup": Entry("START", "asks what is missing (key, sandbox, time zone), proves each"),
    "chat": Entry("START", "talk here: to the running host, or to one for as long as you talk"),
    "up": Entry("START", "run the host in front"),
    "down": Entry("START", "stop it; running turns finish first"),
    "restart": Entry("START", "stop it and begin again; running turns finish first"),
    "status": Entry("LOOK", "what goes on, and what is wrong"),
    "logs": Entry("LOOK", "what the host did (-f follows)"),
    "agents": Entry("THINGS", "list show add connect disconnect"),
    "chats": Entry("THINGS", "list show set"),
    "sessions": Entry("THINGS", "list show"),
    "messages": Entry("THINGS", "list show retry (list --undelivered)"),
    "tasks": Entry("THINGS", "list show add set remove pause resume run"),
    "config": Entry("KEEP", "list get set unset: each value with where it comes from"),
    "prune": Entry("KEEP", "remove files of messages over 30 days old (--dry-run)"),
    "build": Entry("KEEP", "build the sandbox image"),
    "version": Entry("KEEP", "which version this is"),
    "help": Entry("KEEP", "this page; --json prints the whole tree"),
}

OPTIONS = {
    ("--home",): "The home folder (else INNKEEPER_HOME, else ~/.innkeeper).",
    ("--json",): "One document of JSON on standard output.",
    ("-q", "--quiet"): "Results and errors only.",
    ("-y", "--yes"): "Yes to every question; a change without a terminal needs it.",
    ("--dry-run",): "Say what would change, and change nothing.",
    ("--debug",): "Show the traceback of an error.",
    ("-h", "--help"): "Show this message and exit.",
}
"""Of `host` itself; they stand before the command or behind it. --home alone takes a value."""

_FLAGS = {name: names[-1] for names in OPTIONS for name in names if names[-1] not in {"--home", "--help"}}
_HELP = frozenset({"-h", "--help"})


def page() -> str:
    """The help of `host` itself."""
    return "\n".join(_page())


def _page() -> Iterator[str]:
    yield from (
        "Usage: host [OPTIONS] [COMMAND] [ARGS]...",
        "",
        "  A fleet of chat agents, each session in a sandbox of its own.",
        "",
        "  The options below may also stand behind the command. Without a command: the",
        "  state, and in a new home on a terminal the setup.",
        "",
        "Options:",
    )
    for names, text in OPTIONS.items():
        shown = "--home DIR" if names == ("--home",) else ", ".join(names)
        yield f"  {shown:<11}  {text}"
    width = max(map(len, COMMANDS))
    for section in dict.fromkeys(entry.section for entry in COMMANDS.values()):
        yield from ("", f"{section}:")
        yield from (f"  {name:<{width}}  {e.summary}" for name, e in COMMANDS.items() if e.section == section)


class Words(NamedTuple):
    """What was typed: the options of `host` itself (by their long names, sorted), and the rest in its order."""

    home: str | None
    options: frozenset[str]
    rest: tuple[str, ...]


def split(words: Sequence[str]) -> Words:
    """Finds the options of `host` itself wherever they stand, so that `host status --json` works as well; "--" ends the
    search. Raises Failure where --home has no value."""
    home: str | None = None
    options: set[str] = set()
    rest: list[str] = []
    queue = iter(words)
    for word in queue:
        if word == "--":
            rest += [word, *queue]
        elif word in _FLAGS:
            options.add(_FLAGS[word])
        elif word.startswith("--home="):
            home = word.removeprefix("--home=")
        elif word == "--home":
            home = next(queue, None)
            if home is None:
                raise Failure(Code.USAGE, "--home needs a folder.", "See `host --help`.")
        else:
            rest.append(word)
    return Words(home, frozenset(options), tuple(rest))


def main(arguments: Sequence[str] | None = None) -> None:
    """The entry point. Never returns."""
    given = sys.argv[1:] if arguments is None else arguments
    as_json, debug = "--json" in given, "--debug" in given
    try:
        code = _run(split(given))
        sys.stdout.flush()
    except Failure as failure:
        code = _say(failure, as_json=as_json)
    except KeyboardInterrupt:
        code = _say_interrupted(as_json=as_json)
    except BrokenPipeError:
        # Whoever read us has seen enough (`host logs | head`); the interpreter must not flush into the closed pipe at
        # exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        code = 0
    except Exception as error:  # the outermost edge: no traceback reaches a terminal without --debug
        if debug:
            raise
        sentence = f"This went wrong inside the command: {type(error).__name__}: {error}"
        code = _say(Failure(Code.FAILED, sentence, "Run it again with --debug for the details."), as_json=as_json)
    sys.exit(code)


def _run(words: Words) -> int:
    if words.rest[:1] and words.rest[0] in _HELP:
        print(page())
        return 0
    from host.cli.invocation import from_options

    invocation = from_options(words.home, words.options)
    rest = words.rest or (_without_a_command(invocation),)
    if rest == ("status",):
        from host.cli.status import status

        return status(invocation)
    from host.cli.tree import run

    return run(rest, invocation)


def _without_a_command(invocation: "Invocation") -> str:
    new = not invocation.home.database.exists()
    return "setup" if new and not invocation.output.as_json and sys.stdin.isatty() else "status"


def _say(failure: Failure, *, as_json: bool) -> int:
    if as_json:
        print(json.dumps({"error": failure.to_json()}), file=sys.stderr)
    else:
        from host.cli.hints import hint
        from host.cli.output import paint
        from host.text import printable

        text = printable(hint(f"{failure.message} {failure.next}".rstrip()), newlines=True)
        print(paint(text, "\033[31m", sys.stderr), file=sys.stderr)
    return EXIT_CODES[failure.code]


def _say_interrupted(*, as_json: bool) -> int:
    return _say(Failure(Code.INTERRUPTED, "Interrupted."), as_json=True) if as_json else EXIT_CODES[Code.INTERRUPTED]


if __name__ == "__main__":
    main()
