"""The command line, against recorded frames and a publisher in a process of its own."""

import signal
import sys
from pathlib import Path
from subprocess import PIPE

import pytest
import trio

from kvlanes.engine._cli import main
from kvlanes.engine.feeds import Feed, SourceInvalid
from kvlanes.engine.feeds._watch import Source, Table
from kvlanes.indexer import Prompt, Rank
from tests.feeds.engines import PATIENCE_SECONDS, ROOT, Engine, engine
from tests.feeds.frames import DATA, RECORDED

RUN = "import sys; from kvlanes.engine._cli import main; sys.exit(main())"


async def command(*arguments: str) -> tuple[int, list[str], str]:
    """Run the command line in a process, as its output is a pipe: no terminal."""
    with trio.fail_after(PATIENCE_SECONDS):
        done = await trio.run_process(
            [sys.executable, "-c", RUN, *arguments],
            capture_stdout=True,
            capture_stderr=True,
            check=False,
            cwd=ROOT,
        )
    return done.returncode, done.stdout.decode().splitlines(), done.stderr.decode()


def source_of(publisher: Engine, name: str = "w0") -> str:
    return f"{name}={publisher.endpoint},{publisher.replay}"


@pytest.mark.parametrize("name", RECORDED)
def test_recorded_files_are_described_and_followed(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["index", "--replay-file", str(DATA / f"{name}.jsonl")]) == 0
    lines = capsys.readouterr().out.splitlines()
    facts = {line[:12].strip(): line[12:] for line in lines if line[:1] != " "}
    assert facts["block size"] == "16"
    assert ("positional" in facts["format"]) == ("positional" in name)
    assert ("digest" in facts["format"]) == ("bytes" in name)
    assert facts["replay"].startswith("yes")
    assert lines[-2].split()[:3] == ["rank", "state", "blocks"]
    assert lines[-1].split()[1] == "stale"


def test_another_block_size_shows_what_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    path = str(DATA / "sglang_0_5_23_default.jsonl")
    assert main(["index", "--replay-file", path, "--block-size", "64"]) == 0
    assert "group 0 has blocks of" in capsys.readouterr().out


def test_a_file_that_is_no_recording_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for text in ("{}", "[1]", '{"kind": "live", "frames": ["?"]}', "not json"):
        path = tmp_path / "frames.jsonl"
        path.write_text(text)
        assert main(["index", "--replay-file", str(path)]) == 1
        assert "line 1" in capsys.readouterr().err
    assert main(["index", "--replay-file", str(tmp_path / "missing")]) == 1


async def test_check_describes_a_publisher() -> None:
    async with engine(topic="kv@pod-a@model") as publisher:
        await publisher.tell("step", batches=12)
        code, lines, errors = await command(
            "index", "--check", source_of(publisher), "--seconds", "0.2"
        )
    assert (code, errors) == (0, "")
    assert "topics      'kv@pod-a@model'" in lines
    assert "block size  4" in lines
    assert "replay      yes, 12 batches" in lines
    assert any(line.startswith("rate        0.0 batches/s") for line in lines)


async def test_check_says_which_flags_to_set() -> None:
    async with engine() as publisher:
        code, lines, _ = await command("index", "--check", publisher.endpoint, "--seconds", "0.1")
    assert code == 1
    assert "replay      no" in lines
    assert any("--kv-events-config" in line for line in lines)


async def test_check_of_nobody_fails_by_name(tmp_path: Path) -> None:
    code, _, errors = await command("index", "--check", f"ipc://{tmp_path}/nobody")
    assert code == 1
    assert "nobody" in errors


async def printed(process: trio.Process, wanted: dict[str, str]) -> None:
    """Read plain lines until the last words after each first word are these."""
    assert process.stdout is not None
    seen: dict[str, str] = {}
    text = b""
    async for data in process.stdout:
        *lines, text = (text + data).split(b"\n")
        assert not any(b"\x1b" in line for line in lines)
        for line in lines:
            name, state, *_ = line.decode().split()
            seen[name] = state
        if seen == wanted:
            return


async def test_follow_prints_plain_tables_until_interrupted() -> None:
    async with engine() as publisher:
        await publisher.tell("step", batches=7)
        sources = [source_of(publisher), "gone=ipc:///nonexistent/kv"]
        options = ["index", "--block-size", "4", "--every", "0.1", "--follow", *sources]
        process = await trio.lowlevel.open_process(
            [sys.executable, "-c", RUN, *options], stdout=PIPE, cwd=ROOT
        )
        try:
            with trio.fail_after(PATIENCE_SECONDS):
                await printed(process, {"rank": "state", "w0": "live", "gone": "cold"})
                process.send_signal(signal.SIGINT)
                assert await process.wait() == 130
        finally:
            process.kill()
            with trio.CancelScope(shield=True, deadline=trio.current_time() + 10):
                await process.wait()  # one that nobody waited for would fail a later test


async def test_follow_ends_after_its_seconds() -> None:
    limits = ["--every", "60", "--seconds", "0.01"]
    code, lines, errors = await command("index", "--follow", "ipc:///nonexistent/kv", *limits)
    assert (code, errors) == (0, "")
    assert [line.split()[1] for line in lines] == ["state", "cold"]


def test_tables_are_rewritten_on_a_terminal() -> None:
    said: list[str] = []
    table = Table(said.append, rewrite=True)
    feed = Feed("x", Rank("w0"))
    for _ in range(2):
        table.print([feed], 1.0)
    assert [line[:4] for line in said] == ["\x1b[Kr", "\x1b[Kw", "\x1b[2F", "\x1b[Kw"]


def test_hashes_of_tokens_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    tokens = list(range(9))
    assert main(["hash", *map(str, tokens), "--block-size", "4", "--namespace", "t"]) == 0
    prompt = Prompt(tokens, 4, namespace="t")
    _, *rows = capsys.readouterr().out.splitlines()
    assert [row.split()[2] for row in rows] == [f"{h:016x}" for h in prompt.sequence_hashes]
    assert main(["hash", "--block-size", "0", "1"]) == 1
    assert "block_size" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "name", "replay"),
    [
        ("tcp://h:1", "tcp://h:1", None),
        ("w=tcp://h:1,tcp://h:2", "w", "tcp://h:2"),
        ("=tcp://h:1", "tcp://h:1", None),
    ],
)
def test_sources_are_named_or_named_after_their_endpoint(
    text: str, name: str, replay: str | None
) -> None:
    source = Source.parse(text)
    assert (source.name, source.events.endpoint) == (name, "tcp://h:1")
    assert source.events.replay == replay


@pytest.mark.parametrize("text", ["", "w=", "host:5557", "tcp://*:1"])
def test_sources_that_cannot_be_dialled_are_refused(text: str) -> None:
    with pytest.raises(SourceInvalid):
        Source.parse(text)


@pytest.mark.parametrize(
    "wrong", [[], ["index"], ["index", "--check", "a", "--follow", "b"], ["hash"], ["hash", "x"]]
)
def test_misuse_exits_with_2(wrong: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_info:
        main(wrong)
    assert exit_info.value.code == 2
