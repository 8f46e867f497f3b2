"""The smallest useful program: two workers, two questions over one library of text."""

import trio

from kvlanes.engine import EngineConfig, Route, Worker, open_engine


def tokenize(text: str) -> list[int]:  # blocking: runs in a thread, under the permit
    return list(text.encode())  # any token ids


async def ask(route: Route, text: str) -> str:  # your call to the worker
    return f"{route.worker} answered"


async def main() -> None:
    async with open_engine(EngineConfig(block_size=16)) as engine:
        engine.register(Worker("gpu-0"), Worker("gpu-1"))
        for question in ("What is a lane?", "What is a lease?"):
            text = "You keep a small library. " * 40 + question
            async with engine.request(seconds=2) as request:
                tokens = await request.preflight(tokenize, text)
                held = request.route(tokens)
                print((await held.dispatch(ask, held.route, text)).unwrap())
                print(held.route.explanation)  # a table: candidates, terms, regret


if __name__ == "__main__":
    trio.run(main)
