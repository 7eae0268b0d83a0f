"""A small space, and a trial process that answers at once."""

import copy
import sys
import uuid
from pathlib import Path

import pytest

from archsearch.config import Where, save_yaml
from archsearch.search.space import parse_space
from tests.search import server

FAKE_TRIAL = Path(__file__).with_name("fake_trial.py")

VALUES = {
    "name": "tiny",
    "architecture": {
        "hidden_size": 16,
        "pattern": "R2AR2A",
        "mixers": {
            "R": {"type": "gated_deltanet", "num_heads": 1, "key_head_dim": 8, "value_head_dim": 16},
            "M": {"type": "m2rnn", "num_heads": 4, "key_head_dim": 8, "value_head_dim": 4, "conv_width": None},
            "A": {"type": "attention", "num_heads": 2},
        },
        "mlp": {"type": "swiglu", "intermediate_size": 16},
    },
    "space": {
        "replace": "R",
        "with": "M",
        "count": {"low": 0, "high": 3},
        "placement": ["first", "before_attention", "spread", "free"],
        "mixers": {
            "M": {
                "key_head_dim": [4, 8],
                "value_head_dim": [4, 24],
                "num_heads": {"match": "parameters", "of": "replaced", "tolerance": 0.2},
            }
        },
    },
    "tasks": {
        "s3": {
            "data": "StateTracking",
            "group": "S3",
            "length": 8,
            "evaluate": [16],
            "batch_size": 8,
            "tokens": 640,
            "learning_rate": 1e-3,
            "eval_size": 16,
        }
    },
    "objectives": [
        {"task": "s3", "metric": "accuracy", "length": 16, "direction": "maximize"},
        {"task": "s3", "metric": "loss", "direction": "minimize"},
    ],
    "budget": {"parameters": {"at_most": 1.01, "of": "base"}},
    "study": {
        "sampler": "random",
        "trials": 8,
        "startup": 3,
        "confirm": {"top": 1, "seeds": 3},
        "timeout_per_trial": "1min",
    },
}


@pytest.fixture
def values():
    """The space as its YAML would be read; a test may change it."""
    return copy.deepcopy(VALUES)


@pytest.fixture
def parse(values):
    """Parse the space with dotted keys set to other values; `...` deletes one."""

    def parse(changes=()):
        for key, value in dict(changes).items():
            *path, last = key.split(".")
            place = values
            for name in path:
                place = place[int(name)] if isinstance(place, list) else place[name]
            if value is ...:
                del place[last]
            else:
                place[int(last) if isinstance(place, list) else last] = value
        return parse_space(values, Where("space.yaml"))

    return parse


@pytest.fixture
def instant_trial(monkeypatch):
    """Let trials answer by the same formula in this very process."""

    def use(mode="ok"):
        def run_trial(folder, config, **_):
            folder.mkdir(parents=True, exist_ok=True)
            save_yaml(folder / "config.yaml", config)
            return answer(config, mode)

        monkeypatch.setattr("archsearch.search.study.run_trial", run_trial)
        monkeypatch.setattr("archsearch.search.confirmation.run_trial", run_trial)

    use()
    return use


def answer(config, mode):
    """Return a trial's report: more M and an M in front are better, seeds add a little."""
    pattern = config["architecture"]["pattern"]
    if mode == "crash" and "M" in pattern:
        return {"outcome": "failed", "reason": "exit status 1: it broke"}
    if mode == "refuse" and config["budget"] and "M" in pattern:
        check = {"name": "peak_memory", "value": 3.0, "limit": "at most 2", "violation": 0.5, "verdict": "infeasible"}
        return {"outcome": "refused", "reason": "peak_memory 3, must be at most 2", "checks": [check]}
    merit = (pattern.count("M") + 0.5 * pattern.startswith("M") + config["seed"] / 10000) / 10
    metrics = {"s3": {"accuracy": merit, "accuracy/16": merit, "loss": 1 - merit}}
    return {"outcome": "completed", "metrics": metrics, "seconds": {"s3": 0.1}}


@pytest.fixture
def fake_trial(monkeypatch):
    """Let trials run a process that answers at once; its modes are in the script."""

    def use(mode="ok"):
        monkeypatch.setattr("archsearch.search.process.COMMAND", (sys.executable, str(FAKE_TRIAL), mode))
        monkeypatch.setattr("archsearch.search.process.POLL_SECONDS", 0.02)

    use()
    return use


@pytest.fixture(scope="session")
def postgres():
    """A PostgreSQL server that a test may stop, and must start again."""
    if reason := server.missing():
        pytest.skip(reason)
    running = server.Server()
    yield running
    running.remove()


@pytest.fixture
def database_url(postgres):
    """The URL of an empty database, with its password."""
    return postgres.make_database(f"db_{uuid.uuid4().hex}")
