"""How a simulated model behaves: what `--mock NAME[:…]` says."""

import attrs

_SECONDS = ("latency", "stubborn", "preflight")
_WORDS = ("down", "bad", "busy", "refuse", "tie", "impossible", "crash", "mute")


@attrs.frozen(kw_only=True)
class Behaviour:
    """What goes wrong, on purpose, so that one running server can show every case.

    Attributes:
        latency: Seconds that each branch takes; cancelling ends it.
        stubborn: Seconds that a cancelled branch goes on all the same.
        preflight: Seconds that preparing takes, blocking a thread.
        down: No worker is registered.
        bad: From the second branch on, results are no distributions.
        busy: Workers say that they have no capacity.
        refuse: Branches 0, 2, 4 … are refused.
        tie: All labels are equally probable.
        impossible: Results have a label too few.
        crash: Workers fail as nobody foresaw.
        mute: The model cannot score.
    """

    latency: float = 0.0
    stubborn: float = 0.0
    preflight: float = 0.0
    down: bool = False
    bad: bool = False
    busy: bool = False
    refuse: bool = False
    tie: bool = False
    impossible: bool = False
    crash: bool = False
    mute: bool = False


def parse_mock(text: str) -> tuple[str, Behaviour]:
    """Read `NAME` or `NAME:latency=0.3,stubborn=1,busy`.

    Raises:
        ValueError: No name, an unknown word, a repeated one, or seconds that are no number >= 0.
    """
    name, _, said = text.partition(":")
    if not name.strip():
        raise ValueError(f"{text!r} names no model")
    found: dict[str, float | bool] = {}
    for word in filter(None, said.split(",")):
        key, value = _word(word)
        if key in found:
            raise ValueError(f"{key!r} stands twice in {text!r}")
        found[key] = value
    return name, Behaviour(**found)  # type: ignore[arg-type]


def _word(word: str) -> tuple[str, float | bool]:
    key, equals, value = word.partition("=")
    if key in _WORDS and not equals:
        return key, True
    if key in _SECONDS and equals:
        seconds = float(value)
        if 0.0 <= seconds < float("inf"):
            return key, seconds
        raise ValueError(f"{key} must be a number of seconds >= 0, got {value}")
    raise ValueError(f"{word!r} is none of {', '.join(f'{s}=S' for s in _SECONDS)}, {_WORDS}")
