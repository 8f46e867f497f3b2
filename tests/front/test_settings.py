"""Flags and the configuration file: what is unknown or contradicts itself is refused."""

from pathlib import Path

import pytest

from examples.server.settings import Settings, parse_settings

FILE = """
port = 0
permits = 64
insecure = false
deadline = 2.5
mock = ["mock-fast", "mock-slow:latency=0.3"]
api-key = ["a", "b"]
cache_scope = "server"

[alias]
jev-latest = "mock-slow"

[worker]
llama = ["http://10.0.0.1:8000", "http://10.0.0.2:8000/v1"]
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "server.toml"
    path.write_text(FILE)
    return path


def refused(capsys: pytest.CaptureFixture[str], *flags: str) -> str:
    with pytest.raises(SystemExit) as info:
        parse_settings(flags)
    assert info.value.code == 2
    return capsys.readouterr().err


def test_a_file_says_what_flags_say(file: Path) -> None:
    settings = parse_settings(["--config", str(file)])
    assert (settings.port, settings.permits, settings.deadline) == (0, 64, 2.5)
    assert settings.api_keys == ("a", "b")
    assert settings.cache_scope == "server"
    assert settings.mocks["mock-slow"].latency == 0.3
    assert settings.aliases == {"jev-latest": "mock-slow"}
    assert settings.upstreams == {"llama": ("http://10.0.0.1:8000", "http://10.0.0.2:8000")}
    assert not settings.insecure


def test_flags_have_the_last_word(file: Path) -> None:
    settings = parse_settings([f"--config={file}", "--permits", "7", "--mock", "mock-slow:tie"])
    assert settings.permits == 7
    assert settings.mocks["mock-slow"].tie


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("permit = 3", "unrecognized arguments: --permit=3"),
        ("permits = 0", "--permits"),
        ("permits = [[]]\nx = 1979-05-27", "no flag can say"),
        ("permits =", "Invalid value"),
        ('config = "other.toml"', "cannot name another"),
        ('worker = ["m=nowhere"]', "--worker"),
    ],
)
def test_a_broken_file_is_refused_with_the_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, why: str
) -> None:
    path = tmp_path / "bad.toml"
    path.write_text(text)
    assert why in refused(capsys, "--config", str(path))


def test_a_missing_file_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "No such file" in refused(capsys, "--config", str(tmp_path / "no.toml"))


@pytest.mark.parametrize(
    ("flags", "why"),
    [
        (["--permit", "3"], "unrecognized arguments"),
        (["--worker", "m=http://h/path"], "--worker"),
        (["--worker", "http://h"], "--worker"),
        (["--worker", "m=http://h", "--mock", "m"], "same name"),
        (["--tokenizer", "m=t.json"], "without a --worker"),
        (["--worker", "m=http://h", "--alias", "a=other"], "no such model"),
        (["--demo", "0"], "--demo"),
    ],
)
def test_flags_that_make_no_sense_are_refused(
    capsys: pytest.CaptureFixture[str], flags: list[str], why: str
) -> None:
    assert why in refused(capsys, *flags)


def test_workers_come_without_simulated_models_and_with_the_usual_alias() -> None:
    settings = parse_settings(["--worker", "m=http://h:1", "--tokenizer", "m=t.json"])
    assert settings.mocks == {}
    assert settings.aliases == {"jev-latest": "m"}
    assert settings.tokenizers == {"m": Path("t.json")}


def test_a_demonstration_brings_its_models_and_listens_to_flags() -> None:
    settings = parse_settings(["--demo=5", "--permits=20"])
    assert (settings.demo, settings.permits) == (5.0, 20)
    assert "mock-stubborn" in settings.mocks
    assert Settings().demo is None


def test_keys_do_not_stand_in_what_is_logged() -> None:
    settings = parse_settings(["--admin-key", "hidden", "--api-key", "secret"])
    assert "hidden" not in repr(settings)
    assert "secret" not in repr(settings)
