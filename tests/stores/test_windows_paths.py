"""Paths of Windows in store URLs. The rules are pure functions of the path, so they are tested on any system."""

from __future__ import annotations

import pytest

from ctxfold import AgentContext, ConfigError
from ctxfold.stores.sql_engine import check_windows_path, parse_url


@pytest.mark.parametrize(
    "path",
    [
        "chat.db",
        "C:/data/chat.db",
        "C:\\data\\chat.db",
        "C:chat.db",
        "\\\\server\\share\\chat.db",
        "\\\\?\\C:\\data\\chat.db",
        "console.db",
        "nullable\\com10.db",
    ],
)
def test_a_path_of_a_file(path: str) -> None:
    check_windows_path(path)


@pytest.mark.parametrize(
    ("path", "device"),
    [
        ("NUL", "NUL"),
        ("C:\\data\\con.db", "con.db"),
        ("aux.db-wal", "aux.db-wal"),
        ("C:/com1/chat.db", "com1"),
        ("prn .db", "prn .db"),
    ],
)
def test_a_path_of_a_device(path: str, device: str) -> None:
    with pytest.raises(ConfigError, match=f"names the device '{device}'"):
        check_windows_path(path)


@pytest.mark.parametrize("path", ["/C:/data/chat.db", "chat:1.db", "C:/data/chat.db:stream"])
def test_a_colon_that_is_not_the_drives(path: str) -> None:
    with pytest.raises(ConfigError, match="three slashes before the drive"):
        check_windows_path(path)


@pytest.mark.parametrize("path", ["C:\\data\\chat.db", "C:/data/chat.db", "d:chat.db"])
def test_a_bare_path_with_a_drive_is_told_its_url(path: str) -> None:
    with pytest.raises(ConfigError) as refused:
        AgentContext(store=path, session_id="s", context_window=4_000)
    assert f"use 'sqlite:///{path}' for a file of that name" in str(refused.value)


def test_a_url_with_backslashes_reaches_the_driver_unchanged(tmp_path: object) -> None:
    name = "a folder\\mine 100%.db"
    address = parse_url(f"sqlite:///{tmp_path}/{name}")
    assert address.url.database == f"{tmp_path}/{name}"
    assert address.name == f"sqlite:///{tmp_path}/{name}"
