"""The benchmark's application for `tidegate run --app bench.app:app`; topic and service come from the environment."""

from __future__ import annotations

import os

from bench.stub import Stopwatch, StubSink
from bench.workload import application

app = application(os.environ["BENCH_SERVICE"], os.environ["BENCH_TOPIC"], StubSink(Stopwatch(1)))
