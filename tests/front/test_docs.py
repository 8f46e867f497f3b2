"""What `docs/server.md` shows is what the server takes."""

import re
import shlex
from pathlib import Path

from examples.server.config_file import arguments_of
from examples.server.settings import parse_settings

TEXT = (Path(__file__).parents[2] / "docs" / "server.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", TEXT, re.DOTALL | re.MULTILINE)


def test_every_command_line_is_understood() -> None:
    lines = [line for block in blocks("sh") for line in block.splitlines() if "-m" in line]
    assert len(lines) == 2
    for line in lines:
        parse_settings(shlex.split(line)[3:])


def test_the_file_is_understood(tmp_path: Path) -> None:
    (text,) = blocks("toml")
    file = tmp_path / "server.toml"
    file.write_text(text)
    settings = parse_settings(arguments_of(file))
    assert settings.upstreams["llama"] == ("http://10.0.0.1:8000", "http://10.0.0.2:8000")
    assert settings.aliases == {"jev-latest": "llama"}


def test_every_flag_that_is_named_exists() -> None:
    known = Path(__file__).parents[2] / "examples" / "server" / "settings.py"
    theirs = {"--enable-prompt-tokens-details", "--help"}
    named = set(re.findall(r"--[a-z][a-z-]*", TEXT)) - theirs
    assert named
    assert {flag for flag in named if f'"{flag}"' not in known.read_text()} == set()
