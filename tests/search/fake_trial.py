"""A trial's process without the training: python fake_trial.py MODE FOLDER."""

import errno
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from archsearch.config import load_yaml
from archsearch.lifetime import die_with_parent
from archsearch.search.trial import Journal

mode, folder = sys.argv[1], Path(sys.argv[2])
die_with_parent()
journal = Journal(folder)
config = load_yaml(folder / "config.yaml")
pattern = config["architecture"]["pattern"]
starts, gpus = journal.report.get("starts", 0) + 1, os.environ.get("CUDA_VISIBLE_DEVICES")
journal.write(phase="train s3", starts=starts, pid=os.getpid(), gpus=gpus)

if mode == "crash" and "M" in pattern:
    sys.exit("it broke")
if mode == "signal":
    os.kill(os.getpid(), signal.SIGSEGV)
if mode.startswith("wait:"):
    while not Path(mode.removeprefix("wait:")).exists():
        time.sleep(0.02)
if mode == "orphan":
    os.kill(os.getppid(), signal.SIGKILL)
if mode in ("kill", "terminate"):
    os.kill(os.getpid(), signal.SIGKILL if mode == "kill" else signal.SIGTERM)
if mode == "full":
    raise OSError(errno.ENOSPC, "No space left on device")
if mode == "oom":
    raise MemoryError
if mode == "hang":
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    journal.write(child=child.pid)
    time.sleep(60)

merit = pattern.count("M") + (0.5 if pattern.startswith("M") else 0.0) + config["seed"] / 10000
journal.report["metrics"] = {"s3": {"accuracy": merit / 10, "accuracy/16": merit / 10, "loss": 1 - merit / 10}}
journal.report["seconds"] = {"s3": 0.1}
journal.write(phase="done", outcome="completed")
