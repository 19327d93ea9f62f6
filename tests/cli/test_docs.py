"""What README and docs tell somebody to type exists, as they tell it."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from host.cli.main import COMMANDS, split
from host.cli.tree import cli

ROOT = Path(__file__).resolve().parents[2]
PAGES = ["README.md", *sorted(f"docs/{page.name}" for page in (ROOT / "docs").glob("*.md"))]

_BLOCK = re.compile(r"^```(?:sh|console)\n(.*?)^```", re.MULTILINE | re.DOTALL)
_INLINE = re.compile(r"`(host [a-z][^`]*)`")
_PLACE_HOLDERS = {"MESSAGE": "m", "SESSION": "s", "AGENT": "a", "NAME": "n", "TASK": "t", "[TEXT]": "text"}


def _lines(page: str) -> Iterator[str]:
    """The `host ...` lines of a page: of its blocks (also behind a pipe), and within its sentences."""
    text = (ROOT / page).read_text(encoding="utf-8")
    for block in _BLOCK.findall(text):
        for line in block.splitlines():
            for part in line.removeprefix("$ ").split("|"):
                if part.split()[:1] == ["host"]:
                    yield part.strip()
    yield from _INLINE.findall(_BLOCK.sub("", text))


def _parse(words: list[str]) -> None:
    """Runs click's own parser down the tree, and no command. Raises click.UsageError."""
    command: click.Command = cli
    context: click.Context | None = None
    rest = list(split(words).rest)
    while True:
        context = command.make_context(command.name, rest, parent=context)
        rest = [*context._protected_args, *context.args] if isinstance(command, click.Group) else []
        if not rest:
            return
        assert isinstance(command, click.Group)
        child = command.get_command(context, rest[0])
        if child is None:
            raise click.UsageError(f"no command {rest[0]!r}")
        command, rest = child, rest[1:]


CASES = [(page, line) for page in PAGES for line in _lines(page)]


@pytest.mark.parametrize(("page", "line"), CASES)
def test_a_command_that_a_page_shows_is_one_that_there_is(page: str, line: str) -> None:
    words = [_PLACE_HOLDERS.get(word, word) for word in shlex.split(line)[1:]]
    try:
        _parse([word for word in words if word not in {"-h", "--help"}])
    except click.exceptions.NoArgsIsHelpError:
        pass
    except click.UsageError as error:
        pytest.fail(f"{page}: `{line}`: {error.format_message()}")


def test_readme_and_command_page_are_looked_at() -> None:
    assert {page for page, _ in CASES} >= {"README.md", "docs/cli.md", "docs/operating.md"}


def test_the_command_page_names_every_command() -> None:
    page = (ROOT / "docs/cli.md").read_text(encoding="utf-8")
    assert [
        name for name in COMMANDS if f"`host {name}" not in page and f"host {name}\n" not in page and name != "help"
    ] == []


@pytest.mark.parametrize("page", PAGES)
def test_links_between_pages_lead_somewhere(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    for target in re.findall(r"\]\((?!https?:)([^)#]+)\)", text):
        assert ((ROOT / page).parent / target).exists(), target


@pytest.mark.parametrize("page", [page for page in PAGES if page != "docs/architecture.md"])
def test_pages_for_users_use_the_words_of_users(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8").lower()
    words = ["agent group", "messaging group", "wiring", "dead letter", "channel account", "recurrence"]
    assert [word for word in words if word in text] == []
