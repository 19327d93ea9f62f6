"""A door in front of the real container engine that a test can shut: what a client sees when the engine is away."""

import asyncio
from pathlib import Path

ENGINE = "/var/run/docker.sock"


class EngineDoor:
    """Passes bytes between a socket of its own and the engine's, from `open` until `shut`."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()

    @property
    def url(self) -> str:
        return f"unix://{self._path}"

    async def open(self) -> None:
        self._server = await asyncio.start_unix_server(self._pass, self._path)

    async def shut(self) -> None:
        """Breaks every connection, as an engine does that is restarted."""
        if self._server is None:
            return
        self._server.close()
        for writer in self._writers:
            writer.transport.abort()
        self._server = None
        self._path.unlink(missing_ok=True)

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        engine_reader, engine_writer = await asyncio.open_unix_connection(ENGINE)
        mine = {writer, engine_writer}
        self._writers |= mine
        try:
            async with asyncio.TaskGroup() as both:
                both.create_task(_copy(reader, engine_writer))
                both.create_task(_copy(engine_reader, writer))
        except* OSError:
            pass  # shut while bytes were on their way
        finally:
            self._writers -= mine
            for one in mine:
                one.transport.abort()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()
    if writer.can_write_eof():
        writer.write_eof()
