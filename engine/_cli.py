"""The command line: `kvlanes index` looks at engine event feeds, `kvlanes hash` names blocks."""

import argparse
import math
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import trio

from kvlanes.engine.feeds import FeedError
from kvlanes.indexer import IndexerError, Prompt

SOURCE_HELP = "[NAME=]ENDPOINT[,REPLAY], for example w0=tcp://10.0.0.1:5557,tcp://10.0.0.1:5558"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; the exit code is 0 when all went well, 1 when not, 2 for misuse."""
    chosen = _parser().parse_args(arguments)
    run: Callable[[argparse.Namespace], int] = chosen.run
    try:
        return run(chosen)
    except KeyboardInterrupt:
        return 130
    except (FeedError, IndexerError, OSError) as error:
        print(f"kvlanes: {error}", file=sys.stderr)
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="kvlanes", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    _add_index(commands.add_parser("index", help="look at, or follow, engine event feeds"))
    _add_hash(commands.add_parser("hash", help="print block and sequence hashes of token ids"))
    return parser


# -- index


def _add_index(parser: argparse.ArgumentParser) -> None:
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--check", metavar="SOURCE", help=f"describe one publisher: {SOURCE_HELP}")
    what.add_argument("--follow", metavar="SOURCE", nargs="+", help="follow, and print a table")
    what.add_argument("--replay-file", metavar="FILE", type=Path, help="both, from recorded frames")
    parser.add_argument("--seconds", type=_positive, help="how long (check 5, follow until Ctrl-C)")
    parser.add_argument("--every", type=_positive, default=1.0, help="seconds between two tables")
    parser.add_argument("--block-size", type=int, default=16, help="tokens a block (16)")
    parser.add_argument("--ranks", type=int, default=1, help="data-parallel ranks a source (1)")
    parser.add_argument("--topic", default="", help="prefix of the topics to receive (all)")
    parser.set_defaults(run=_index)


def _positive(text: str) -> float:
    value = float(text)
    if not value > 0:
        raise argparse.ArgumentTypeError(f"must be > 0, got {text}")
    return value


def _index(chosen: argparse.Namespace) -> int:
    # Imported here, so that the rest of the command line works without the extra.
    from kvlanes.engine.feeds._options import require_zmq

    require_zmq()
    if chosen.replay_file is not None:
        return _replay_file(chosen)
    return _check(chosen) if chosen.check is not None else _follow(chosen)


def _replay_file(chosen: argparse.Namespace) -> int:
    from kvlanes.engine.feeds._watch import check_recording, follow_recording

    seen = check_recording(chosen.replay_file, _say)
    follow = partial(follow_recording, block_size=chosen.block_size)
    trio.run(follow, chosen.replay_file, _say)
    return 0 if seen else 1


def _check(chosen: argparse.Namespace) -> int:
    from kvlanes.engine.feeds._watch import Source, check

    source = Source.parse(chosen.check, topic=chosen.topic)
    return 0 if trio.run(check, source.events, chosen.seconds or 5.0, _say) else 1


def _follow(chosen: argparse.Namespace) -> int:
    from kvlanes.engine.feeds._watch import Source, follow

    parse = partial(Source.parse, ranks=chosen.ranks, topic=chosen.topic)
    run = partial(
        follow,
        [parse(text) for text in chosen.follow],
        _say,
        block_size=chosen.block_size,
        seconds=chosen.seconds or math.inf,
        every_seconds=chosen.every,
        rewrite=sys.stdout.isatty(),
    )
    trio.run(run)
    return 0


def _say(line: str) -> None:
    print(line, flush=True)


# -- hash


def _add_hash(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("tokens", type=int, nargs="+", help="token ids")
    parser.add_argument("--block-size", type=int, default=16, help="tokens a block (16)")
    parser.add_argument("--adapter", help="adapter (LoRA) name")
    parser.add_argument("--namespace", help="cache salt")
    parser.set_defaults(run=_hash)


def _hash(chosen: argparse.Namespace) -> int:
    prompt = Prompt(
        chosen.tokens, chosen.block_size, adapter=chosen.adapter, namespace=chosen.namespace
    )
    print(f"{'block':>5}  {'block hash':<16}  sequence hash")
    for at, sequence_hash in enumerate(prompt.sequence_hashes):
        block = prompt.blocks[8 * at : 8 * at + 8].hex()
        print(f"{at:>5}  {block}  {sequence_hash:016x}")
    return 0
