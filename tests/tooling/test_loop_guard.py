"""The guard fires on code that is like the host's, and on nothing else."""

import asyncio
import fcntl
import functools
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.plugins import loop_guard
from tests.tooling.hostlike import blocking

HOSTLIKE = f"{Path(__file__).parent / 'hostlike'}/"


@pytest.fixture(autouse=True)
def _hostlike_is_host() -> Iterator[None]:
    loop_guard.HOST_FOLDERS.append(HOSTLIKE)
    yield
    loop_guard.HOST_FOLDERS.remove(HOSTLIKE)
    loop_guard.take()


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (blocking.reads_a_file, "open"),
        (blocking.reads_through_a_helper, "open"),
        (blocking.lists_a_folder, "os.listdir"),
        (blocking.removes_a_tree, "shutil.rmtree"),
        (blocking.opens_a_database, "sqlite3.connect"),
        (blocking.connects_and_waits, "socket.connect"),
        (blocking.runs_a_program, "subprocess.Popen"),
        (blocking.sleeps, "time.sleep"),
        (blocking.waits_for_a_lock, "fcntl.flock"),
    ],
)
async def test_a_call_of_the_host_that_blocks_is_found(
    call: Callable[[Path], asyncio.Future[None]], named: str, tmp_path: Path
) -> None:
    await call(tmp_path)

    found = loop_guard.take()
    assert found, "nothing was found"
    assert found[0].startswith(named)
    assert "hostlike/blocking.py" in found[0]


async def test_a_callback_of_the_host_that_blocks_is_found(tmp_path: Path) -> None:
    done = asyncio.Event()
    asyncio.get_running_loop().call_soon(functools.partial(blocking.callback_that_reads, tmp_path, done))
    await done.wait()

    assert loop_guard.take()


async def test_a_callback_that_computes_for_long_is_found() -> None:
    await asyncio.create_task(blocking.computes(0.08))

    (found,) = loop_guard.take()
    assert "computes" in found
    assert "ms of CPU" in found


async def test_short_computing_is_no_fault() -> None:
    await asyncio.create_task(blocking.computes(0.001))

    assert loop_guard.take() == []


@pytest.mark.parametrize(
    "call",
    [
        blocking.reads_in_a_thread,
        blocking.connects_without_waiting,
        blocking.spawns_a_child,
        blocking.tries_a_lock,
        blocking.imports_a_module,
        blocking.logs_a_traceback,
    ],
)
async def test_what_does_not_block_is_let_through(call: Callable[[Path], asyncio.Future[None]], tmp_path: Path) -> None:
    await call(tmp_path)

    assert loop_guard.take() == []


async def test_what_a_test_does_in_its_own_coroutine_is_its_own_affair(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("by the test")
    blocking.helper(tmp_path / "file")
    with (tmp_path / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)

    assert loop_guard.take() == []


def test_the_test_in_which_it_happened_fails(pytester: pytest.Pytester) -> None:
    pytester.makeconftest("""
        import pathlib
        from tests.plugins import loop_guard

        loop_guard.HOST_FOLDERS.append(str(pathlib.Path("hostlike.py").absolute()))
        pytest_plugins = ["tests.plugins.loop_guard"]
    """)
    pytester.makepyfile(
        hostlike="""
        async def blocks():
            open("/dev/null").close()
        """,
        test_it="""
        import asyncio
        import hostlike

        def test_that_blocks():
            asyncio.run(hostlike.blocks())

        def test_that_does_not():
            pass
        """,
    )
    result = pytester.runpytest_subprocess("-p", "no:randomly")

    result.assert_outcomes(passed=2, errors=1)
    result.stdout.fnmatch_lines(["*ERROR at teardown of test_that_blocks*", "*blocks the event loop's thread*"])
