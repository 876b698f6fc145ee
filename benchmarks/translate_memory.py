"""Peak memory of `emnat translate` on streams of several lengths, and when its first line comes out.

python benchmarks/translate_memory.py runs/demo 10000 1000000
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import IO

SENTENCES = ["Der Arzt hat gelacht.", "Ein Kind hat gestern das Buch gefunden.", "", "Die Frau wird bald schlafen."]


def feed(stream: IO[bytes], lines: int) -> None:
    for number in range(lines):
        stream.write(SENTENCES[number % len(SENTENCES)].encode() + b"\n")
    stream.close()


def measure(model: Path, lines: int) -> None:
    command = [sys.executable, "-m", "emnat", "translate", str(model), "--decoder", "odd"]
    started = time.monotonic()
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin is not None
    assert process.stdout is not None
    feeder = threading.Thread(target=feed, args=(process.stdin, lines))
    feeder.start()
    written, first = 0, 0.0
    still_fed_at_first_line = False
    for _ in process.stdout:
        if not written:
            first, still_fed_at_first_line = time.monotonic() - started, feeder.is_alive()
        written += 1
    _, status, usage = os.wait4(process.pid, 0)
    assert status == 0
    assert written == lines
    seconds = time.monotonic() - started
    print(
        f"{lines:>9,} lines: peak {usage.ru_maxrss / 1024:.0f} MiB, first line after {first:.1f} s "
        f"(input still coming: {still_fed_at_first_line}), {lines / seconds:,.0f} lines/s",
        flush=True,
    )


if __name__ == "__main__":
    for count in sys.argv[2:]:
        measure(Path(sys.argv[1]), int(count))
