import pytest

from mailboxes.commands import CommandClass, classify, command_of


@pytest.mark.parametrize(
    ("text", "word", "kind"),
    [
        ("hello", None, CommandClass.NONE),
        ("", None, CommandClass.NONE),
        (" /clear", None, CommandClass.NONE),
        ("/help", "/help", CommandClass.PASS),
        ("/help me", "/help", CommandClass.PASS),
        ("/HELP@my_bot please", "/help", CommandClass.PASS),
        ("/start", "/start", CommandClass.FILTER),
        ("/clear", "/clear", CommandClass.ADMIN),
        ("/Clear@my_bot\nall of it", "/clear", CommandClass.ADMIN),
        ("/compact", "/compact", CommandClass.ADMIN),
        ("/clearly not", "/clearly", CommandClass.NONE),
        ("/", "/", CommandClass.NONE),
        ("/etc/passwd is a file", "/etc/passwd", CommandClass.NONE),
    ],
)
def test_a_text_is_read_as_the_command_that_it_starts_with(text: str, word: str | None, kind: CommandClass) -> None:
    assert command_of(text) == word
    assert classify(text) is kind
