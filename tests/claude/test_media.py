"""Pictures and PDFs as the model gets them, through the host's broker and a wire-level fake of the API."""

import base64
import io
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from agent_runner.providers import media
from agent_runner.providers.base import Failure
from agent_runner.providers.media import MAX_EDGE, MAX_PICTURE_BYTES, MAX_SHOWN
from tests.claude.conftest import Desk
from tests.fakes.messages_api import Behaviour, Fail, MessagesApi, from_prompt

PDF = b"%PDF-1.7\n1 0 obj\n<<>>\nendobj\ntrailer\n<<>>\n%%EOF\n"


def picture(size: tuple[int, int] = (8, 8), form: str = "PNG", noise: bool = False, mode: str = "RGB") -> bytes:
    image = Image.effect_noise(size, 100).convert(mode) if noise else Image.new(mode, size, "red")
    written = io.BytesIO()
    image.save(written, form)
    return written.getvalue()


class Files:
    """The inbound folder of a session, and messages that name what is in it."""

    def __init__(self, root: Path) -> None:
        self.root = root / "inbound" / "files"

    def __call__(self, data: bytes, kind: str = "image/png", name: str = "1-a.png", row: str = "m1") -> str:
        """A prompt that names the file."""
        (self.root / row).mkdir(parents=True, exist_ok=True)
        path = self.root / row / name
        path.write_bytes(data)
        return (
            f'<messages>\n<message id="2" sender="Ann" time="now">look\n'
            f'<attachment name="a" type="{kind}" path="{path}"/></message>\n</messages>'
        )


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


def native(api: MessagesApi, call: int = -1) -> list[dict[str, Any]]:
    """The native blocks of a request."""
    messages = api.calls[call].body["messages"]
    return [
        b
        for m in messages
        if isinstance(m["content"], list)
        for b in m["content"]
        if b["type"] in ("image", "document")
    ]


def data_of(block: dict[str, Any]) -> bytes:
    return base64.b64decode(block["source"]["data"])


@pytest.mark.req("R126")
@pytest.mark.parametrize(
    ("form", "kind"), [("PNG", "image/png"), ("JPEG", "image/jpeg"), ("GIF", "image/gif"), ("WEBP", "image/webp")]
)
async def test_a_picture_within_the_limits_goes_to_the_model_as_it_is(
    desk: Desk,
    api: MessagesApi,
    files: Files,
    form: str,
    kind: str,
) -> None:
    data = picture(form=form)
    await desk.say(files(data, kind))
    [block] = native(api)
    assert (block["type"], block["source"]["media_type"], data_of(block)) == ("image", kind, data)


@pytest.mark.req("R126")
async def test_the_type_is_that_of_the_content_whatever_the_message_says(
    desk: Desk,
    api: MessagesApi,
    files: Files,
) -> None:
    await desk.say(files(picture(form="JPEG"), "image/png"))
    assert native(api)[0]["source"]["media_type"] == "image/jpeg"


@pytest.mark.req("R126")
async def test_a_pdf_goes_to_the_model_as_a_document(desk: Desk, api: MessagesApi, files: Files) -> None:
    await desk.say(files(PDF, "application/pdf", "1-a.pdf"))
    [block] = native(api)
    assert (block["type"], block["source"]["media_type"], data_of(block)) == ("document", "application/pdf", PDF)


@pytest.mark.req("R126", "R129")
async def test_another_type_stays_a_path(desk: Desk, api: MessagesApi, files: Files) -> None:
    prompt = files(b"PK\3\4...", "application/zip", "1-a.zip")
    await desk.say(prompt)
    assert native(api) == []
    assert api.calls[-1].body["messages"][-1]["content"][-1]["text"] == prompt


@pytest.mark.req("R126")
@pytest.mark.parametrize(
    "data",
    [
        picture((9000, 40)),
        picture((2000, 1500), noise=True),
        picture((2000, 3000), "JPEG", noise=True),
        picture((1200, 1000), noise=True, mode="RGBA"),
        picture((3000, 20), "GIF"),
        picture((4000, 1), mode="LA"),
        picture((4000, 2), mode="1"),
    ],
    ids=["wide", "noise", "jpeg", "alpha", "gif", "grey", "bits"],
)
async def test_a_picture_over_the_limits_is_made_smaller(
    desk: Desk,
    api: MessagesApi,
    files: Files,
    data: bytes,
) -> None:
    await desk.say(files(data))
    [block] = native(api)
    made = data_of(block)
    with Image.open(io.BytesIO(made)) as shown:
        assert max(shown.size) <= MAX_EDGE
        assert Image.MIME[shown.format or ""] == block["source"]["media_type"]
    assert len(made) <= MAX_PICTURE_BYTES


@pytest.mark.req("R129")
@pytest.mark.parametrize(
    ("data", "kind", "reason"),
    [
        (picture((64, 64), noise=True)[:-200], "image/png", "damaged"),
        (b"\x89PNG\r\n\x1a\n" + b"rubbish" * 99, "image/png", "damaged"),
        (b"RIFF\0\0\0\0WEBPrubbish", "image/webp", "damaged"),
        (picture((20_000, 10_000), mode="1"), "image/png", "million pixels"),
        (PDF + b"x" * 5_000_000, "application/pdf", "4 MB is the most"),
    ],
    ids=["cut", "rubbish", "webp", "bomb", "pdf"],
)
async def test_what_cannot_be_shown_is_a_note_and_the_turn_completes(
    desk: Desk,
    api: MessagesApi,
    files: Files,
    data: bytes,
    kind: str,
    reason: str,
) -> None:
    await desk.say(files(data, kind))
    assert native(api) == []
    assert reason in api.calls[-1].body["messages"][-1]["content"][0]["text"]


def refusing(block_of: Callable[[dict[str, Any]], bool], said: str) -> Callable[[dict[str, Any]], Behaviour]:
    """An API that refuses every request with such a block, wherever in it; `said` may name the place."""

    def choose(body: dict[str, Any]) -> Behaviour:
        for index, message in enumerate(body["messages"]):
            for number, block in enumerate(message["content"]):
                if isinstance(block, dict) and block_of(block):
                    return Fail(400, "invalid_request_error", said.format(index=index, number=number))
        return from_prompt(body)

    return choose


def is_media(block: dict[str, Any]) -> bool:
    return block["type"] in ("image", "document")


@pytest.mark.req("R129")
@pytest.mark.parametrize(
    "said",
    [
        "messages.{index}.content.{number}.image.source.base64: Could not process image",
        "Could not process image",
        "The PDF specified is password protected.",
        "Output blocked by content filtering policy",
    ],
)
@pytest.mark.parametrize(("data", "kind"), [(picture(), "image/png"), (PDF, "application/pdf")])
async def test_a_file_that_the_api_refuses_is_a_note_and_poisons_nothing(
    desk: Desk,
    api: MessagesApi,
    files: Files,
    said: str,
    data: bytes,
    kind: str,
) -> None:
    api.always = refusing(is_media, said)
    await desk.say(files(data, kind))
    texts = json.dumps(api.calls[-1].body["messages"])
    assert "attachment-refused" in texts
    assert native(api) == []
    before = len(api.calls)
    await desk.say("and now?")
    desk.reopen()
    await desk.say("and after a restart?")
    assert len(api.calls) == before + 2


@pytest.mark.req("R129")
async def test_only_the_picture_that_the_api_names_is_left_out(desk: Desk, api: MessagesApi, files: Files) -> None:
    good, bad = picture((9, 9)), picture((7, 7))
    poison = base64.b64encode(bad).decode()
    api.always = refusing(
        lambda block: block["type"] == "image" and block["source"]["data"] == poison,
        "messages.{index}.content.{number}.image: Could not process image",
    )
    await desk.say(files(good) + files(bad, name="2-b.png") + files(good, name="3-c.png"))
    assert [data_of(block) for block in native(api)] == [good, good]
    await desk.say(files(picture((5, 5)), row="m2"))
    assert len(native(api)) == 3


@pytest.mark.req("R129")
async def test_an_older_picture_that_is_refused_of_late_goes_too(desk: Desk, api: MessagesApi, files: Files) -> None:
    await desk.say(files(picture()))
    api.always = refusing(is_media, "image exceeds a limit that is new")
    await desk.say("still there?")
    assert native(api) == []


async def test_a_refusal_that_was_not_for_the_pictures_fails_and_takes_nothing_away(
    desk: Desk,
    api: MessagesApi,
    files: Files,
) -> None:
    api.always = lambda _body: Fail(400, "invalid_request_error", "tools.0: no")
    assert isinstance(await desk.fail(files(picture())), Failure)
    api.always = from_prompt
    await desk.say(files(picture()))
    assert len(native(api)) == 1


@pytest.mark.req("R126")
async def test_a_picture_is_still_there_in_later_turns_and_after_a_restart(
    desk: Desk,
    api: MessagesApi,
    files: Files,
) -> None:
    await desk.say(files(picture()))
    first = api.calls[-1].body["messages"][0]
    await desk.say("what colour was it?")
    desk.reopen()
    await desk.say("and now?")
    later = api.calls[-1].body["messages"][0]
    for block in first["content"]:
        block.pop("cache_control", None)
    assert later == first
    assert "base64" not in desk.transcript.path.read_text()


async def test_a_picture_whose_time_is_over_is_only_named(desk: Desk, api: MessagesApi, files: Files) -> None:
    await desk.say(files(picture()))
    (files.root / "m1" / "1-a.png").unlink()
    desk.provider.media = media.Media()
    assert await desk.say("what colour was it?")
    assert native(api) == []


@pytest.mark.req("R126")
async def test_many_pictures_stay_within_a_request(desk: Desk, api: MessagesApi, files: Files) -> None:
    noisy = picture((1400, 1000), "JPEG", noise=True)
    for number in range(12):
        await desk.say(files(noisy, row=f"m{number}"))
    assert 0 < len(native(api)) <= MAX_SHOWN
    assert len(api.calls[-1].raw) < 8 * 1024 * 1024
    assert len(desk.provider.media._prepared) <= MAX_SHOWN


async def test_the_beginning_of_a_request_stays_the_same_while_pictures_come(
    desk: Desk,
    api: MessagesApi,
    files: Files,
) -> None:
    for number in range(MAX_SHOWN + 5):
        await desk.say(files(picture(), row=f"m{number}"))
    firsts = [
        json.dumps(call.body["messages"][0]).replace(', "cache_control": {"type": "ephemeral"}', "")
        for call in api.calls
    ]
    assert len(set(firsts)) == 2


@pytest.mark.req("R097")
@pytest.mark.parametrize("path", ["/etc/hostname", "{root}/../secret/x/1-a.png", "{link}", "{fifo}"])
async def test_a_path_elsewhere_is_not_read(
    desk: Desk,
    api: MessagesApi,
    files: Files,
    tmp_path: Path,
    path: str,
) -> None:
    prompt = files(picture())
    inside = files.root / "m1"
    (tmp_path / "secret.png").write_bytes(picture())
    (inside / "2-link").symlink_to(tmp_path / "secret.png")
    os.mkfifo(inside / "3-fifo")
    named = path.format(root=files.root, link=inside / "2-link", fifo=inside / "3-fifo")
    await desk.say(prompt.replace(str(inside / "1-a.png"), named))
    assert native(api) == []


async def test_an_element_that_a_command_makes_up_shows_nothing(desk: Desk, api: MessagesApi, files: Files) -> None:
    await desk.say("/init " + files(picture()))
    assert native(api) == []


async def test_a_long_conversation_lets_go_of_old_pictures_first(desk: Desk, api: MessagesApi, files: Files) -> None:
    old, new = picture((9, 9)), picture((7, 7))
    await desk.say(files(old))
    api.next(Fail(400, "invalid_request_error", "prompt is too long: 210000 tokens > 200000 maximum"))
    await desk.say(files(new, row="m2"))
    assert [data_of(block) for block in native(api)] == [new]


async def test_without_pillow_small_pictures_still_go(
    desk: Desk,
    api: MessagesApi,
    files: Files,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(media, "_pillow", lambda: None)
    await desk.say(files(picture()) + files(picture((2000, 1500), noise=True), name="2-b.png"))
    assert len(native(api)) == 1
