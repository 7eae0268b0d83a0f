"""When `archsearch fit` reaches its first step: `STARTED=$(date +%s.%N) python .../first_step.py fit ...`.

Takes the arguments of `archsearch` and says on standard error, in seconds since STARTED, what is done when.
"""

import functools
import os
import sys
import time
from typing import Any

STARTED = float(os.environ.get("STARTED", time.time()))


def say(what: str) -> None:
    print(f"{time.time() - STARTED:6.1f} s  {what}", file=sys.stderr, flush=True)


say("python runs")
import lightning.pytorch  # noqa: E402, F401
import torch  # noqa: E402

from archsearch.cli import main  # noqa: E402
from archsearch.training import module  # noqa: E402

say("imported")


def announced(function: Any, name: str, times: int = 1) -> Any:
    left = [times]

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        left[0] -= 1
        if left[0] < 0:
            return function(*args, **kwargs)
        if torch.cuda.is_initialized():
            torch.cuda.synchronize()
        say(f"{name} begins")
        return function(*args, **kwargs)

    return call


module.LanguageModel.__init__ = announced(module.LanguageModel.__init__, "model")
module.compile_kernels = announced(module.compile_kernels, "compilation of kernels")
module.LanguageModel.training_step = announced(module.LanguageModel.training_step, "step", times=2)
sys.exit(main(sys.argv[1:]))
