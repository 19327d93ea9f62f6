"""The prompt of `host chat`: a line to write on, what comes above it, and whether somebody thinks."""

from prompt_toolkit import PromptSession, print_formatted_text
from prompt_toolkit.formatted_text import FormattedText
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.patch_stdout import patch_stdout

from host.cli import attaching
from host.cli.conversation import Conversation, Shown
from host.failure import Failure
from host.text import printable

_HELP = "Write, and Enter sends. Alt-Enter is a new line. /file PATH sends a file. /quit or Ctrl-D ends."


def _keys() -> KeyBindings:
    keys = KeyBindings()

    @keys.add("escape", "enter")
    def _(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    return keys


class Prompt:
    """One person at one terminal, talking to `name`."""

    def __init__(self, name: str) -> None:
        self._name = printable(name)
        self._thinking = False
        self._far = ""
        self._begun = True
        self._session: PromptSession[str] = PromptSession(bottom_toolbar=self._toolbar, key_bindings=_keys())

    def show(self, shown: Shown) -> None:
        """Prints one chunk above the prompt."""
        who = "host" if shown.notice else self._name
        style = "ansiyellow" if shown.notice else "ansicyan bold"
        text = printable(shown.lines(), newlines=True)
        heading = [(style, f"{who}> ")] if self._begun else []
        self._begun = shown.last
        print_formatted_text(FormattedText([*heading, ("ansiyellow" if shown.notice else "", text)]))

    def progress(self, text: str) -> None:
        """Shows how far the agent is, or with "" nothing of it."""
        self._far = printable(text)
        self._session.app.invalidate()

    def remark(self, text: str) -> None:
        """Prints what is no message above the prompt."""
        print_formatted_text(FormattedText([("ansibrightblack", printable(text))]))

    def busy(self, active: bool) -> None:
        """Shows or clears "is thinking"."""
        if active != self._thinking:
            self._thinking = active
            self._session.app.invalidate()

    async def run(self, conversation: Conversation, first: str | None, files: tuple[str, ...] = ()) -> int:
        """Until /quit or Ctrl-D; Ctrl-C clears the line, and on an empty line ends. Answers with the exit code."""
        print_formatted_text(FormattedText([("ansibrightblack", _HELP)]))
        with patch_stdout(raw=True):
            if first is not None or files:
                await self._send(conversation, first or "", files)
            while True:
                try:
                    text = await self._session.prompt_async("you> ")
                except EOFError:
                    return 0
                except KeyboardInterrupt:
                    if self._session.default_buffer.text:
                        continue
                    return 0
                if text.strip() == "/quit":
                    return 0
                if text.strip():
                    await self._send(conversation, text)

    async def _send(self, conversation: Conversation, text: str, files: tuple[str, ...] = ()) -> None:
        try:
            if not files:
                text, files = attaching.split(text)
            await conversation.send(text, files)
        except Failure as failure:
            self.show(Shown(f"{failure.message} {failure.next}".rstrip(), notice=True))

    def _toolbar(self) -> str:
        return self._far or (f"{self._name} is thinking ..." if self._thinking else "")
