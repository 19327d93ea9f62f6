"""Each function does one thing that blocks a thread, or one that looks like it and does not."""

import asyncio
import contextlib
import fcntl
import importlib
import logging
import os
import shutil
import socket
import sqlite3
import subprocess
import sys
import time
from pathlib import Path


def helper(path: Path) -> str:
    return path.read_text()


async def reads_a_file(folder: Path) -> None:
    (folder / "file").write_text("text")


async def reads_through_a_helper(folder: Path) -> None:
    helper(Path("/dev/null"))


async def lists_a_folder(folder: Path) -> None:
    os.listdir(folder)


async def removes_a_tree(folder: Path) -> None:
    shutil.rmtree(folder / "missing", ignore_errors=True)


async def opens_a_database(folder: Path) -> None:
    sqlite3.connect(":memory:").close()


async def connects_and_waits(folder: Path) -> None:
    with socket.socket(socket.AF_UNIX) as client, contextlib.suppress(OSError):
        client.connect(str(folder / "nobody"))


async def runs_a_program(folder: Path) -> None:
    subprocess.run(["true"], check=True)


async def sleeps(folder: Path) -> None:
    time.sleep(0.0001)


async def waits_for_a_lock(folder: Path) -> None:
    handle = await asyncio.to_thread(os.open, folder / "lock", os.O_CREAT | os.O_RDWR)
    fcntl.flock(handle, fcntl.LOCK_EX)
    os.close(handle)


def callback_that_reads(folder: Path, done: asyncio.Event) -> None:
    helper(Path("/dev/null"))
    done.set()


async def computes(seconds: float) -> None:
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


async def reads_in_a_thread(folder: Path) -> None:
    await asyncio.to_thread(helper, Path("/dev/null"))


async def connects_without_waiting(folder: Path) -> None:
    with socket.socket(socket.AF_UNIX) as client, contextlib.suppress(OSError):
        client.setblocking(False)
        client.connect(str(folder / "nobody"))


async def spawns_a_child(folder: Path) -> None:
    child = await asyncio.create_subprocess_exec("true", stdin=subprocess.DEVNULL)
    await child.wait()


async def tries_a_lock(folder: Path) -> None:
    handle = await asyncio.to_thread(os.open, folder / "lock", os.O_CREAT | os.O_RDWR)
    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(handle)


async def imports_a_module(folder: Path) -> None:
    sys.modules.pop("this_is_never_imported_otherwise", None)
    importlib.import_module("colorsys")


async def logs_a_traceback(folder: Path) -> None:
    try:
        raise OSError("made for the log")
    except OSError:
        logging.getLogger("hostlike").exception("as a loop's outermost edge does")
