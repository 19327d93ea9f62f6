"""A Docker engine that a test starts itself, so that it may be killed."""

import asyncio
import shutil
import signal
import subprocess
import tempfile
import time
from contextlib import closing, suppress
from pathlib import Path

import docker
from docker.errors import DockerException
from requests.exceptions import RequestException

from host.runtime.engine import connect

START_SECONDS = 30.0


class Engine:
    """One dockerd with folders of its own. `live_restore`: its containers go on when it is killed."""

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="fire-"))
        self.live_restore = False
        self._process: subprocess.Popen[bytes] | None = None
        self.url = f"unix://{self._folder}/docker.sock"

    def start(self) -> None:
        """Returns when it answers."""
        folder = self._folder
        command = [
            "dockerd", f"--data-root={folder}/data", f"--exec-root={folder}/exec", f"--host={self.url}",
            f"--pidfile={folder}/docker.pid", "--bridge=none", "--iptables=false", "--ip6tables=false",
            f"--live-restore={str(self.live_restore).lower()}",
        ]  # fmt: skip
        for left in ("docker.pid", "exec/containerd/containerd.pid"):
            # Where nobody reaps orphans the killed engine's helper looks alive for ever, and would be waited for.
            (folder / left).unlink(missing_ok=True)
        with (folder / "log").open("ab") as log:
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline and self._process.poll() is None:
            with suppress(DockerException, RequestException), connect(self.url, START_SECONDS) as client:
                client.ping()
                return
            time.sleep(0.1)  # until its socket is there
        raise AssertionError((folder / "log").read_text()[-2000:])

    def load(self, image: str) -> None:
        """Gives it an image that the machine's own engine has."""
        with closing(docker.from_env(timeout=120)) as ours, self._client() as theirs:
            theirs.images.load(ours.api.get_image(image))
            theirs.images.get(image)

    def _client(self) -> closing[docker.DockerClient]:
        return closing(docker.DockerClient(self.url, timeout=120))

    def kill(self) -> None:
        """kill -9."""
        self._end(signal.SIGKILL)

    def close(self) -> None:
        """Ends it with its containers, and removes its folders."""
        with suppress(DockerException, RequestException), connect(self.url, START_SECONDS) as client:
            for container in client.containers(all=True):
                client.remove_container(container["Id"], force=True)
        self._end(signal.SIGTERM)
        data = self._folder / "data"
        # An engine that was killed leaves its mount, and the next one lays another over it.
        unmount = ["umount", "--recursive", "--lazy", str(data)]
        while subprocess.run(unmount, capture_output=True, check=False).returncode == 0:
            pass
        shutil.rmtree(self._folder)

    def _end(self, number: signal.Signals) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(number)
            self._process.wait(START_SECONDS)


async def kill_containers(label: str) -> None:
    """kill -9 of every container with that label, on the machine's own engine."""

    def kill() -> None:
        with closing(docker.from_env()) as client:
            for container in client.containers.list(filters={"label": label}):
                with suppress(DockerException):  # it may have ended meanwhile
                    container.kill()

    await asyncio.to_thread(kill)
