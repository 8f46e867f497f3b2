"""Promise: a permit is out as long as the thread that needs it runs, whoever has hung up."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import trio

from kvlanes.engine import AdmissionGate, AdmissionRefused

PERMITS, THREADS, HANG_UPS = 4, 16, 1000


class Tokenizer:
    """A blocking function that takes long: every thread in it stays until `finish`."""

    def __init__(self) -> None:
        self.running = 0
        self.finish = threading.Event()
        self._lock = threading.Lock()

    def __call__(self) -> None:
        with self._lock:
            self.running += 1
        self.finish.wait()
        with self._lock:
            self.running -= 1


async def semaphore() -> None:
    """`asyncio.wait_for(to_thread(...))`: at the timeout the permit is free, the thread is not."""
    permits, tokenize = asyncio.Semaphore(PERMITS), Tokenizer()
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(THREADS))

    async def request() -> None:
        async with permits:
            await asyncio.wait_for(asyncio.to_thread(tokenize), 0.001)

    for _ in range(HANG_UPS // PERMITS):
        await asyncio.gather(*(request() for _ in range(PERMITS)), return_exceptions=True)
    free = sum([not permits.locked() and await permits.acquire() for _ in range(PERMITS)])
    print(f"semaphore: {free} of {PERMITS} permits free, {tokenize.running} threads run")
    tokenize.finish.set()
    await asyncio.get_running_loop().shutdown_default_executor()


async def gate() -> None:
    """The thread holds the permit: four run, everybody else is told so at once."""
    admission, tokenize = AdmissionGate(PERMITS, preflight_slots=THREADS), Tokenizer()
    refused = 0
    for _ in range(HANG_UPS):
        try:
            with trio.move_on_after(0.001), admission.admit_nowait() as permit:
                await permit.run_blocking(tokenize)
        except AdmissionRefused:
            refused += 1
    threads = admission.statistics().threads
    print(f"gate: {admission.free} of {PERMITS} permits free, {threads} threads run")
    print(f"gate: {refused} of {HANG_UPS} refused at once")
    tokenize.finish.set()
    await admission.wait_idle()
    print(f"gate: {admission.free} of {PERMITS} permits free once the threads have ended")


def main() -> None:
    asyncio.run(semaphore())
    trio.run(gate)


if __name__ == "__main__":
    main()
