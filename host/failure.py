"""What a person is told when a command cannot be done: the thing, the reason, the next step; and the exit code that
goes with it."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Self


class Code(StrEnum):
    """Why, for programs. Each has one exit code (docs/cli.md)."""

    FAILED = "failed"
    USAGE = "usage"
    REFUSED = "refused"
    NOT_FOUND = "not_found"
    AMBIGUOUS = "ambiguous"
    NO_HOST = "no_host"
    INTERRUPTED = "interrupted"


EXIT_CODES: Mapping[Code, int] = {
    Code.FAILED: 1,
    Code.USAGE: 2,
    Code.REFUSED: 4,
    Code.NOT_FOUND: 5,
    Code.AMBIGUOUS: 5,
    Code.NO_HOST: 6,
    Code.INTERRUPTED: 130,
}


class Failure(Exception):
    """A command that was not done. `message` names the thing and the reason, `next` what to do about it ("" =
    nothing)."""

    def __init__(self, code: Code, message: str, next_step: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.next = next_step

    def to_json(self) -> dict[str, str]:
        """The shape that travels: code, message, next."""
        return {"code": self.code, "message": self.message, "next": self.next}

    @classmethod
    def from_json(cls, data: object) -> Self:
        """The same failure on the other side of the control socket; what is not one becomes Code.FAILED."""
        if not isinstance(data, dict):
            return cls(Code.FAILED, "The host answered with an error that cannot be read.")
        try:
            code = Code(str(data.get("code")))
        except ValueError:
            code = Code.FAILED
        return cls(code, str(data.get("message", "")), str(data.get("next", "")))
