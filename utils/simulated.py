"""Instruments whose truth is known: a clock set by hand, a machine that slows down, a queue.

They make the errors of a timer visible as exact numbers. `Clock` moves only when work is done on
it; `DriftingMachine` does work on such a clock and gets slower with each call. `QueueDevice` is
real: a thread takes functions from a queue and runs them, as a GPU takes kernels from a stream, so
that handing over work and finishing it are two events.
But: a queue of Python functions is not a GPU. It shows why to wait, not how long to wait there.
"""

import queue
import threading


class Clock:
    """Seconds that pass only through `sleep`: a stand-in for time.perf_counter."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now

    def sleep(self, seconds):
        """Let `seconds` pass."""
        self.now += seconds


class DriftingMachine:
    """Each call makes the next one dearer: call number k (from 0) costs work · (1 + drift · k)."""

    def __init__(self, drift, clock=None):
        self.drift, self.clock, self.calls = drift, clock or Clock(), 0

    def arm(self, work):
        """A function that does `work` seconds of work, as they were before any drift."""

        def run():
            self.clock.sleep(work * (1 + self.drift * self.calls))
            self.calls += 1

        return run


class QueueDevice:
    """A device that works on its own: `submit` returns at once, `synchronize` waits.

    capacity: jobs that may wait; 0 for no limit. With a limit, submit blocks while the queue is
    full, as a launch does. Use it as a context manager; close() ends the thread.
    An exception in a job is raised by the next synchronize or by the end of the `with` block.
    """

    kind, name, threads, memory_bytes = "queue", "a thread behind a queue", 1, None

    def __init__(self, capacity=0):
        if capacity < 0:
            raise ValueError(f"capacity={capacity}: jobs that may wait, 0 for no limit")
        self._jobs = queue.Queue(capacity)
        self._error, self._closed = None, False
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def submit(self, function, *arguments):
        """Hand over work; it runs later, in order."""
        if self._closed:
            raise RuntimeError("this device is closed: its thread has ended, make a new one")
        self._jobs.put((function, arguments))

    def synchronize(self):
        """Wait until everything that was submitted is done."""
        self._jobs.join()
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    def close(self):
        """Finish what was submitted and end the thread."""
        if not self._closed:
            self._closed = True
            self._jobs.put(None)
            self._thread.join()

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        self.close()
        if kind is None:
            self.synchronize()

    def _work(self):
        while (job := self._jobs.get()) is not None:
            try:
                job[0](*job[1])
            except Exception as error:
                self._error = self._error or error
            self._jobs.task_done()
        self._jobs.task_done()
