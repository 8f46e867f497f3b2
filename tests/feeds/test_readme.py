"""What the README shows of `kvlanes index` is what it prints, but for names, rates and lags."""

import re

import trio

from tests.feeds.engines import PATIENCE_SECONDS, ROOT, Engine, engine
from tests.feeds.test_cli import command, source_of

README = (ROOT / "README.md").read_text()


def shown(option: str) -> tuple[list[str], list[str]]:
    """The arguments of a command, without its source, and the lines below it."""
    pattern = rf"^kvlanes (index [^\n]*{option}) [^\n]*\n```\n\n```text\n(.*?)^```$"
    (found,) = re.findall(pattern, README, re.DOTALL | re.MULTILINE)
    return found[0].split(), found[1].splitlines()


def comparable(line: str, publisher: Engine) -> str:
    """Without where the publisher is, how fast it sends, and how far behind we are."""
    line = line.replace(publisher.endpoint, "tcp://10.0.0.1:5557")
    return re.sub(r"\d+\.\d+( batches/s| s\))?|(?<= )-(?= )", "_", line)


async def test_check_prints_what_the_readme_shows() -> None:
    arguments, lines = shown("--check")
    async with engine(topic="kv-events") as publisher:
        await publisher.tell("step", batches=12)
        code, said, errors = await command(*arguments, source_of(publisher), "--seconds", "0.2")
        assert (code, errors) == (0, "")
        assert [comparable(line, publisher) for line in said] == [
            comparable(line, publisher) for line in lines
        ]


async def test_follow_prints_what_the_readme_shows() -> None:
    arguments, lines = shown("--follow")
    async with engine(topic="kv-events") as publisher:
        await publisher.tell("step", batches=12)
        wanted = [comparable(line, publisher).split() for line in lines]
        with trio.fail_after(PATIENCE_SECONDS):
            while True:  # until it has caught up
                limits = ("--every", "60", "--seconds", "0.5")
                code, said, errors = await command(*arguments, source_of(publisher), *limits)
                assert (code, errors) == (0, "")
                if [comparable(line, publisher).split() for line in said] == wanted:
                    return
