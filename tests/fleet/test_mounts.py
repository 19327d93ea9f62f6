"""Extra folders: asked for by an agent's configuration, allowed by the operator's list alone."""

from pathlib import Path
from typing import Any

import pytest

from host.db.agent_groups import ContainerConfig
from host.home import Home
from host.mounts import LIST, extra_mounts
from host.runtime.base import Mount, SandboxRefused
from tests.fleet.house import House, Machine, until


def allow(home: Home, *folders: Path | str, readonly: bool = False) -> None:
    text = "".join(f'[[folders]]\npath = "{folder}"\nreadonly = {str(readonly).lower()}\n' for folder in folders)
    (home.root / LIST).write_text(text)


def mounts(home: Home, *wishes: dict[str, Any], guarded: tuple[Path, ...] = ()) -> tuple[Mount, ...]:
    return extra_mounts(home, "luna", ContainerConfig(wishes), guarded)


@pytest.fixture
def site(tmp_path: Path) -> Path:
    folder = tmp_path / "site"
    folder.mkdir()
    return folder


@pytest.mark.req("R085")
async def test_a_listed_folder_reaches_the_runtime_read_only_unless_both_say_otherwise(
    machine: Machine, site: Path
) -> None:
    allow(machine.home, site)
    async with machine.host() as house:
        await house.configure({"additionalMounts": [{"hostPath": str(site), "containerPath": "web"}]})
        await house.send()
        assert (await house.sandbox()).spec.extra_mounts == (Mount(site, "/workspace/extra/web", read_only=True),)


@pytest.mark.req("R085")
async def test_a_folder_that_is_not_listed_fails_the_message_with_the_next_step(house: House, site: Path) -> None:
    await house.configure({"additionalMounts": [{"hostPath": str(site)}]})
    await house.send()
    await until(house.channel.notices)
    assert f"{LIST} does not list" in house.channel.notices()[0]
    assert house.process.asked == 0


@pytest.mark.req("R085")
@pytest.mark.parametrize(
    ("listed", "wished", "effective"),
    [(False, False, False), (False, True, True), (True, False, True), (False, None, True)],
)
def test_readonly_holds_where_either_side_asks_for_it(
    home: Home, site: Path, listed: bool, wished: bool | None, effective: bool
) -> None:
    allow(home, site, readonly=listed)
    wish = {"hostPath": str(site)} | ({} if wished is None else {"readonly": wished})
    assert mounts(home, wish) == (Mount(site, "/workspace/extra/site", read_only=effective),)


@pytest.mark.req("R085")
def test_the_tilde_is_the_operators_home(home: Home, site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(site.parent))
    allow(home, "~/site")
    assert mounts(home, {"hostPath": "~/site"})[0].source == site


@pytest.mark.req("R085")
@pytest.mark.parametrize("below", ["", "sessions", "groups"])
def test_neither_the_home_nor_anything_in_it_is_mounted_although_it_is_listed(home: Home, below: str) -> None:
    allow(home, home.root / below)
    with pytest.raises(SandboxRefused, match="no agent may be given"):
        mounts(home, {"hostPath": str(home.root / below)})


@pytest.mark.req("R085")
def test_folders_above_the_home_the_database_and_keys_are_not_mounted(
    home: Home, site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(site))
    (site / ".ssh").mkdir()
    (site / "data").mkdir()
    for folder in (home.root.parent, site, site / ".ssh", site / "data", Path("/etc")):
        allow(home, folder)
        with pytest.raises(SandboxRefused, match="no agent may be given"):
            mounts(home, {"hostPath": str(folder)}, guarded=(site / "data",))


@pytest.mark.req("R085")
def test_links_files_missing_and_relative_paths_are_refused(home: Home, site: Path) -> None:
    link, file = site.parent / "link", site.parent / "file"
    link.symlink_to(site)
    file.write_text("")
    for path in (link, file, site.parent / "missing", Path("relative"), site / ".." / "site"):
        allow(home, path)
        with pytest.raises(SandboxRefused):
            mounts(home, {"hostPath": str(path)})


@pytest.mark.req("R085")
@pytest.mark.parametrize(
    "wish", [{}, {"hostPath": 1}, {"hostPath": "/x", "readonly": "no"}, {"hostPath": "/x", "mode": 1}]
)
def test_a_malformed_wish_names_the_agent(home: Home, wish: dict[str, Any]) -> None:
    with pytest.raises(SandboxRefused, match="luna"):
        mounts(home, wish)


@pytest.mark.req("R085")
def test_a_list_that_cannot_be_read_or_nests_is_refused_and_names_its_file(home: Home, site: Path) -> None:
    for text in ("folders = 1", "no toml", f'[[folders]]\npath = "{site}"\n[[folders]]\npath = "{site}/in"\n'):
        (home.root / LIST).write_text(text)
        with pytest.raises(SandboxRefused, match=LIST):
            mounts(home, {"hostPath": str(site)})
