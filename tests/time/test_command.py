"""`host tasks` as a person types it, against a running host and without one."""

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.fire.scene import House, house
from tests.whole.conftest import forge
from tests.whole.harness import Forge

__all__ = ["forge"]


async def host(made: House, *words: str) -> tuple[int, str, str]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "host", "--home", str(made.home.root), "-y", *words,
        env={**os.environ, **made.host.environment}, stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    out, err = await process.communicate()
    assert process.returncode is not None
    return process.returncode, out.decode(), err.decode()


async def answer(made: House, *words: str) -> Any:
    code, out, err = await host(made, "--json", "tasks", *words)
    assert code == 0, err
    return json.loads(out)


@pytest.mark.slow
@pytest.mark.req("R115", "R117")
async def test_a_task_is_made_shown_changed_held_run_and_removed_from_a_shell(forge: Forge) -> None:
    async with house(forge) as made:
        made_task = await answer(
            made, "add", "Water the plants", "--agent", "calm", "--cron", "0 9 * * *", "--zone", "UTC"
        )
        assert (made_task["name"], made_task["recurrence"], made_task["chat"]) == (
            "Water the plants",
            "0 9 * * *",
            "terminal:cli-calm",
        )
        assert [row["id"] for row in await answer(made, "list")] == [made_task["id"]]
        changed = await answer(
            made, "set", "Water the plants", "--cron", "0 10 * * *", "--text", "Now!", "--hours", "9-22"
        )
        assert (changed["next"][11:16], changed["text"], changed["hours"]) == ("10:00", "Now!", "9-22")
        assert (await answer(made, "pause", made_task["id"][:8]))["state"] == "paused"
        assert (await answer(made, "resume", "Water the plants"))["state"] == "active"
        assert (await answer(made, "run", "Water the plants"))["message"].startswith("m-")
        assert (await answer(made, "show", "Water the plants"))["next"] == changed["next"]
        said = await answer(made, "add", "Stand up", "--agent", "calm", "--say", "--every", "2h")
        assert (said["kind"], said["recurrence"]) == ("message", "every 2h")
        code, out, _ = await host(made, "tasks")
        assert code == 0
        assert "Stand up" in out
        assert (await answer(made, "remove", "Stand up"))["state"] == "cancelled"
        code, out, _ = await host(made, "--dry-run", "tasks", "remove", "Water the plants")
        assert (code, "Would do" in out) == (3, True)
        await made.host.stop()
        assert [row["name"] for row in await answer(made, "list")] == ["Water the plants"]
        code, _, err = await host(made, "tasks", "pause", "Water the plants")
        assert code == 6, err
        await made.host.start()
        await made.call("status")


@pytest.mark.slow
@pytest.mark.req("R237")
async def test_what_is_wrong_has_its_exit_code_and_a_file_is_taken_in_as_far_as_it_can_be(
    forge: Forge, tmp_path: Path
) -> None:
    good = {
        "id": "a",
        "schedule": {"kind": "cron", "expr": "0 9 * * *"},
        "payload": {"kind": "agent_turn", "message": "x"},
    }
    file = tmp_path / "CRON.json"
    async with house(forge) as made:
        for words, wanted, hint in (
            (("add", "x"), 4, "recurrence"),
            (("add",), 2, "--from"),
            (("add", "x", "--every", "1h", "--cron", "* * * * *"), 2, "--every"),
            (("add", "x", "--every", "5s"), 4, "60 s"),
            (("add", "x", "--cron", "0 0 9 * * *"), 4, "five fields"),
            (("add", "x", "--every", "1h", "--agent", "nobody"), 5, "nobody"),
            (("show", "nothing"), 5, "tasks list"),
            (("add", "--from", str(tmp_path / "none.json")), 5, "none.json"),
        ):
            where = () if "--agent" in words or words[0] != "add" else ("--agent", "calm")
            code, out, err = await host(made, "tasks", *words, *where)
            assert (code, out) == (wanted, ""), err
            assert hint in err
        file.write_text(json.dumps([good, {"id": "b"}]))
        code, out, _ = await host(made, "tasks", "add", "--from", str(file), "--agent", "calm")
        assert code == 3
        assert "added" in out
        assert "it has no schedule." in out
        file.write_text(json.dumps([good]))
        assert [row["outcome"] for row in await answer(made, "add", "--from", str(file), "--agent", "calm")] == [
            "unchanged"
        ]
        file.write_text("{")
        code, _, err = await host(made, "tasks", "add", "--from", str(file), "--agent", "calm")
        assert (code, "no JSON" in err) == (4, True)
