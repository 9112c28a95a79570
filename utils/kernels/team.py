"""A team of threads that runs one step together, with barriers inside the step.

Starting threads (or a parallel loop) for each product would cost more than a product takes. So the
threads stay, meet at barriers, and between steps they watch a counter for a moment before they go
to sleep. They are threads of the operating system: if there are fewer cores than threads, a
barrier that waits gives its core away, so that nothing hangs.

The numbers that the threads share lie in one int64 array, each on a cache line of its own.
"""

import ctypes
import os
import sys
import threading
import weakref

import llvmlite.ir as ir
import numpy as np
from numba import types
from numba.extending import intrinsic

from utils.kernels.blocks import inner

LINE = 8  # int64 numbers in a cache line
ARRIVED, EPOCH, YIELD = 0, LINE, 2 * LINE  # places in the shared array
FIRST = 3 * LINE  # then, for each thread: barriers passed, epoch seen
SPINS_BEFORE_YIELD = 20_000
SPINS_BEFORE_SLEEP = 400_000  # about a millisecond


def shared(threads):
    """The shared array of a team."""
    numbers = np.zeros(FIRST + LINE * threads, np.int64)
    numbers[YIELD] = _yield_address()
    return numbers


def _yield_address():
    """Address of the function that gives the core away; 0 where it isn't known."""
    library = ctypes.windll.kernel32 if sys.platform == "win32" else ctypes.CDLL(None)
    function = getattr(
        library, "SwitchToThread" if sys.platform == "win32" else "sched_yield", None
    )
    return ctypes.cast(function, ctypes.c_void_p).value if function else 0


def _place(context, builder, array_type, array, index):
    data = context.make_array(array_type)(context, builder, array).data
    return builder.gep(data, [index])


@intrinsic
def atomic_add(typing, array, index, amount):
    """array[index] += amount, visible to all threads in order."""

    def emit(context, b, sig, args):
        place = _place(context, b, sig.args[0], args[0], args[1])
        b.atomic_rmw("add", place, args[2], "seq_cst")
        return context.get_dummy_value()

    return types.void(array, types.int64, types.int64), emit


@intrinsic
def atomic_load(typing, array, index):
    """array[index], with all that was written before it."""

    def emit(context, b, sig, args):
        return b.load_atomic(_place(context, b, sig.args[0], args[0], args[1]), "seq_cst", 8)

    return types.int64(array, types.int64), emit


@intrinsic
def give_way(typing, address):
    """Call the function at `address`, which takes no argument."""

    def emit(context, b, sig, args):
        signature = ir.FunctionType(ir.IntType(32), [])
        b.call(b.inttoptr(args[0], signature.as_pointer()), [])
        return context.get_dummy_value()

    return types.void(types.int64), emit


@inner
def barrier(team, thread, threads):
    """Wait until all threads of the team are here."""
    mine = FIRST + LINE * thread
    team[mine] += 1
    target = team[mine] * threads
    atomic_add(team, ARRIVED, 1)
    spins = 0
    while atomic_load(team, ARRIVED) < target:
        spins += 1
        if spins % SPINS_BEFORE_YIELD == 0 and team[YIELD] != 0:
            give_way(team[YIELD])


@inner
def next_epoch(team, thread):
    """True once a new step has been announced, False after a moment without one."""
    seen = FIRST + LINE * thread + 1
    for _ in range(SPINS_BEFORE_SLEEP):
        if atomic_load(team, EPOCH) != team[seen]:
            team[seen] += 1
            return True
    return False


def announce(team):
    """A new step: all that was written before is visible to whoever sees the new number."""
    atomic_add(team, EPOCH, 1)


class Team:
    """Runs `work(0)` in the caller's thread and `work(thread)` in threads 1 ... threads - 1.

    work(0) does one step and ends with a barrier. The others return after a moment without a new
    epoch (see `next_epoch`) and are called again when there is one. announce: the compiled
    function above.
    """

    def __init__(self, numbers, threads, work, announce):
        self.numbers, self.threads = numbers, threads
        self.work, self.announce = work, announce
        self._start()

    def _start(self):
        self.process = os.getpid()
        self.asleep = [False] * self.threads
        self.wake = [threading.Semaphore(0) for _ in range(self.threads)]
        self.closed = threading.Event()
        for thread in range(1, self.threads):
            share = (self.numbers, self.asleep, self.wake[thread], self.closed, self.work, thread)
            threading.Thread(target=_serve, args=share, daemon=True).start()
        self._finalizer = weakref.finalize(self, _close, self.closed, self.wake)

    def run(self):
        """One step. A forked process has no threads but its own: they are started again."""
        if self.closed.is_set():
            raise RuntimeError("the engine was closed: make a new one")
        if self.process != os.getpid():
            self._start()
        self.announce(self.numbers)
        for thread in range(1, self.threads):
            if self.asleep[thread]:
                self.asleep[thread] = False
                self.wake[thread].release()
        self.work(0)

    def close(self):
        """End the threads; the team can't run again."""
        self._finalizer()


def _close(closed, wake):
    closed.set()
    for semaphore in wake:
        semaphore.release()


def _serve(numbers, asleep, wake, closed, work, thread):
    seen = FIRST + LINE * thread + 1
    while not closed.is_set():
        work(thread)
        asleep[thread] = True
        if numbers[EPOCH] != numbers[seen]:  # announced before the flag was up
            asleep[thread] = False
            continue
        wake.acquire()
