from __future__ import annotations

import csv

import jsonargparse._common
import pytest
import torch
from omegaconf import OmegaConf

from archsearch import registry
from archsearch.cli import main

TINY = """
hidden_size: 16
pattern: M
mixers: {M: {type: m2rnn, num_heads: 2, key_head_dim: 4, value_head_dim: 4}}
mlp: {intermediate_size: 16}
"""
DATA = [
    "--data=StateTracking",
    "--data.length=6",
    "--data.batch_size=4",
    "--data.eval_size=8",
    "--data.eval_lengths=[9]",
]
QUIET = ["--trainer.accelerator=cpu", "--trainer.enable_progress_bar=false"]
LAST = "lightning_logs/version_0/checkpoints/last.ckpt"


@pytest.fixture(autouse=True)
def _folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny.yaml").write_text(TINY)
    # what may be imported is a setting of the whole process
    denied = dict.fromkeys(jsonargparse._common.default_import_path_denylist, False)
    fresh = {"import_path_verdicts": denied, "import_paths_enforced": False}  # whatever ran before in this process
    monkeypatch.setattr(jsonargparse._common, "parsing_settings", {**jsonargparse._common.parsing_settings, **fresh})


def fit(*flags, steps=2):
    return main(["fit", "--model.architecture=tiny.yaml", *DATA, *QUIET, f"--trainer.max_steps={steps}", *flags])


def checkpoint(path=LAST):
    return torch.load(path, weights_only=True)


def test_fit_trains_logs_saves_and_says_where(tmp_path, capfd):
    assert fit(steps=12) == 0
    out, err = capfd.readouterr()
    assert err == ""
    assert f"checkpoint: {LAST}" in out
    assert {line.split()[0] for line in out.splitlines()} >= {"val/loss", "val/accuracy/6", "val/accuracy/9"}
    assert checkpoint()["global_step"] == 12
    header = (tmp_path / "lightning_logs/version_0/metrics.csv").read_text().splitlines()[0].split(",")
    assert {"train/loss", "train/tokens", "tokens/s", "val/perplexity/9", "step"} <= set(header)
    assert sorted(path.name for path in (tmp_path / "lightning_logs/version_0").iterdir()) == [
        "checkpoints",
        "config.yaml",
        "hparams.yaml",
        "metrics.csv",
    ]


def test_a_run_may_keep_no_checkpoint(tmp_path, capfd):
    assert fit("--trainer.enable_checkpointing=false") == 0
    assert "checkpoint" not in capfd.readouterr().out
    assert not list(tmp_path.rglob("*.ckpt"))


def test_a_saved_config_runs_again_with_flags_over_it(capfd):
    assert fit("--seed_everything=5") == 0
    assert main(["fit", "-c", "lightning_logs/version_0/config.yaml", "--trainer.max_steps=3"]) == 0
    assert checkpoint("lightning_logs/version_1/checkpoints/last.ckpt")["global_step"] == 3
    assert OmegaConf.load("lightning_logs/version_1/config.yaml").data.init_args.seed == 5
    assert "warning" not in capfd.readouterr().err.lower()


def validated(run=0):
    with open(f"lightning_logs/version_{run}/metrics.csv") as file:
        return [int(row["step"]) + 1 for row in csv.DictReader(file) if row.get("val/loss")]


def test_validations_are_spread_over_the_run_unless_an_interval_is_given(monkeypatch):
    monkeypatch.setattr("archsearch.training.cli.VALIDATE_EVERY", 4)
    assert fit(steps=6) == 0
    assert validated() == [3, 6]
    assert fit("--trainer.val_check_interval=4", steps=6) == 0
    assert validated(run=1) == [4]
    assert main(["fit", "-c", "lightning_logs/version_0/config.yaml", "--trainer.max_steps=5"]) == 0
    assert validated(run=2) == [2, 4]
    assert fit("-c", "lightning_logs/version_1/config.yaml", steps=5) == 0
    assert validated(run=3) == [4]


def test_a_checkpoint_says_model_and_data_where_flags_do_not(capfd):
    assert fit("--model.optimizer.learning_rate=0.5", "--seed_everything=5") == 0
    trained = {name: x.clone() for name, x in checkpoint()["state_dict"].items()}
    assert main(["fit", f"--ckpt_path={LAST}", *QUIET, "--trainer.max_steps=2"]) == 0
    assert all(torch.equal(trained[name], x) for name, x in checkpoint()["state_dict"].items())
    capfd.readouterr()
    assert main(["validate", f"--ckpt_path={LAST}", *QUIET]) == 0
    first = capfd.readouterr().out
    assert main(["test", f"--ckpt_path={LAST}", *QUIET, "--data.length=5"]) == 0
    assert "val/accuracy/6" in first
    assert "test/accuracy/5" in capfd.readouterr().out


def test_explicit_flags_win_over_the_checkpoint(capfd):
    assert fit() == 0
    flags = ["--trainer.max_steps=4", "--model.optimizer.learning_rate=0.25", "--model.schedule.type=constant"]
    assert main(["fit", f"--ckpt_path={LAST}", *QUIET, *flags]) == 0
    resumed = checkpoint("lightning_logs/version_1/checkpoints/last.ckpt")
    assert resumed["global_step"] == 4
    assert resumed["hyper_parameters"]["optimizer"]["learning_rate"] == 0.25
    assert resumed["hyper_parameters"]["schedule"]["type"] == "constant"
    assert [group["lr"] for group in resumed["optimizer_states"][0]["param_groups"]] == [0.25, 0.25]
    assert main(["fit", f"--ckpt_path={LAST}", *QUIET, "--model.pattern=MM"]) == 1
    error = capfd.readouterr().err.splitlines()[-1]
    assert error.startswith(f"error: ckpt_path: {LAST} holds pattern M, hidden size 16, vocabulary 6 (id ")
    assert "asked for is pattern M2, hidden size 16, vocabulary 6 (id " in error


@pytest.mark.filterwarnings("ignore:Experiment logs directory")  # it is the same on purpose
def test_validate_leaves_the_config_of_fit_alone_and_a_second_fit_is_welcome(tmp_path):
    assert fit() == 0
    folder = tmp_path / "lightning_logs" / "version_0"
    config = (folder / "config.yaml").read_text()
    logger = ["--trainer.logger=CSVLogger", "--trainer.logger.save_dir=.", "--trainer.logger.version=version_0"]
    assert main(["validate", f"--ckpt_path={LAST}", *QUIET, *logger]) == 0
    assert (folder / "config.yaml").read_text() == config
    assert (folder / "validate.yaml").exists()
    assert fit(*logger, steps=3) == 0
    assert checkpoint()["global_step"] == 3


def test_predict_writes_plain_tensors(tmp_path, capfd):
    assert fit() == 0
    assert main(["predict", f"--ckpt_path={LAST}", *QUIET, "--predictions.path=out/words.pt"]) == 0
    assert "predictions: out/words.pt" in capfd.readouterr().out
    batches = torch.load(tmp_path / "out" / "words.pt", weights_only=True)
    assert torch.cat([batch["tokens"] for batch in batches]).shape == (8, 6)
    assert set(batches[0]) == {"tokens", "targets", "predictions", "log_probabilities"}


def test_predict_takes_the_config_of_fit_and_writes_beside_its_own(capfd):
    assert fit() == 0
    config = "lightning_logs/version_0/config.yaml"
    assert main(["predict", "-c", config, f"--ckpt_path={LAST}", "--trainer.enable_progress_bar=false"]) == 0
    out, err = capfd.readouterr()
    assert "predictions: lightning_logs/version_1/predictions.pt" in out
    assert err == ""
    batch = torch.load("lightning_logs/version_1/predictions.pt", weights_only=True)[0]
    assert (batch["log_probabilities"] < 0).all()
    assert batch["predictions"].shape == batch["targets"].shape == batch["tokens"].shape


def test_a_run_may_be_as_long_as_its_tokens():
    flags = ["--model.schedule.tokens=240", "--model.architecture=tiny.yaml"]
    assert main(["fit", *flags, *DATA, *QUIET]) == 0
    assert (checkpoint()["global_step"], checkpoint()["tokens_seen"]) == (10, 240)


@pytest.mark.parametrize(
    ("flags", "code", "message"),
    [
        (
            ["--model.pattern=RRRX", *DATA],
            1,
            "pattern: unknown letter 'X' at position 4; letters of this architecture:",
        ),
        (["--model.pattern=RM"], 1, "data: is required: --data=StateTracking or --data=Text"),
        (["--data=StateTracking"], 1, "model.pattern: is required unless model.architecture is given"),
        (["--data=StateTrackin"], 2, "data: unknown 'StateTrackin' (did you mean 'StateTracking'?); known: "),
        (["--data=Text", "--data.path=/nowhere"], 1, "data.path: no such file or folder: /nowhere"),
        (["--data=StateTracking", "--data.group=Q8"], 1, "data.group: must be S<n>, A<n> or Z<n>, such as S3"),
        (["--data=StateTracking", "--data.lenght=3"], 2, "data.lenght: unknown (did you mean 'length'?); known: group"),
        (["--data=StateTracking", "--data.length=x"], 2, "data.length: Expected a <class 'int'>. Got value: x"),
        (
            ["--model.optimizer.learning_rat=1"],
            2,
            "unknown flag --model.optimizer.learning_rat (did you mean 'model.",
        ),
        (["--trainer.max_step=1"], 2, "unknown flag --trainer.max_step (did you mean 'trainer.max_steps'?)"),
        (["-c", "nowhere.yaml"], 2, "config: File does not exist: "),
        (["-c", "key.yaml"], 2, "key.yaml: unknown key 'trainer.max_stepps' (did you mean 'trainer.max_steps'?)"),
        (["-c", "broken.yaml"], 2, "broken.yaml: is not valid YAML: "),
        (
            ["-c", "evil.yaml"],
            1,
            "class_path: evil.Evil is not allowed: it is not part of archsearch, lightning, torch; ",
        ),
        (
            ["--data=os.system"],
            1,
            "class_path: os.system is not allowed: it is not part of archsearch, ",
        ),
        (["--ckpt_path=nowhere.ckpt"], 1, "ckpt_path: no such file: nowhere.ckpt"),
        (["--ckpt_path=tiny.yaml"], 1, "ckpt_path: tiny.yaml is no checkpoint of plain tensors and values: "),
        (["--ckpt_path=pickled.ckpt"], 1, "ckpt_path: pickled.ckpt is no checkpoint of plain tensors and values: "),
        (["--ckpt_path=other.ckpt"], 1, "ckpt_path: other.ckpt is no checkpoint of this program"),
        (["--plugin", "nowhere"], 1, "--plugin nowhere: cannot be imported: No module named 'nowhere'"),
        ([*DATA, "--trainer.accumulate_grad_batches=0"], 1, "trainer.accumulate_grad_batches: must be positive; got 0"),
        ([*DATA, "--trainer.val_check_interval=0"], 1, "trainer.val_check_interval: must be positive; got 0"),
        ([*DATA, "--trainer.val_check_interval=-0.5"], 1, "trainer.val_check_interval: must be positive; got -0.5"),
        (["--model.pattern=M", *DATA, "--trainer.accelerator=foo"], 1, "You selected an invalid accelerator name"),
    ],
)
def test_a_users_errors_are_one_line(tmp_path, capfd, flags, code, message):
    (tmp_path / "key.yaml").write_text("trainer:\n  max_stepps: 3\n")
    (tmp_path / "broken.yaml").write_text("trainer: [1, 2\n")
    (tmp_path / "evil.yaml").write_text("trainer:\n  callbacks:\n  - class_path: evil.Evil\n")
    torch.save({"hyper_parameters": {}}, tmp_path / "other.ckpt")
    torch.save({"model": torch.nn.Linear(1, 1)}, tmp_path / "pickled.ckpt")
    assert main(["fit", *flags]) == code
    out, err = capfd.readouterr()
    assert out == ""
    assert err.startswith(f"error: {message}")
    assert len(err.splitlines()) == (3 if "pattern: unknown" in err else 1)  # a pattern is shown with a caret


def test_code_from_elsewhere_runs_when_trusted(tmp_path, monkeypatch):
    (tmp_path / "elsewhere.py").write_text(
        "from lightning.pytorch import Callback\nclass Witness(Callback):\n"
        "    def on_train_start(self, trainer, pl_module): open('seen', 'w').close()\n"
    )
    (tmp_path / "callbacks.yaml").write_text("trainer:\n  callbacks:\n  - class_path: elsewhere.Witness\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert fit("-c", "callbacks.yaml", "--trust") == 0
    assert (tmp_path / "seen").exists()
    (tmp_path / "seen").unlink()
    assert fit("-c", "callbacks.yaml") == 1
    assert not (tmp_path / "seen").exists()


def test_a_mixer_of_the_users_is_trained(tmp_path, monkeypatch):
    before = dict(registry._plugins)
    monkeypatch.setattr(registry, "_plugins", before)
    (tmp_path / "my_mixer.py").write_text(
        "from archsearch import registry\nm2rnn = registry.get('m2rnn')\n"
        "registry.register('mine', options=m2rnn.options, letters='Y')(type('Mine', (m2rnn.module,), {}))\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert main(["fit", "--plugin", "my_mixer", "--model.pattern=Y", *DATA, *QUIET, "--trainer.max_steps=1"]) == 0
    assert checkpoint()["hyper_parameters"]["architecture"]["mixers"]["Y"]["type"] == "mine"


def test_ctrl_c_saves_and_says_so(tmp_path, monkeypatch, capfd):
    (tmp_path / "impatient.py").write_text(
        "import os, signal\nfrom lightning.pytorch import Callback\nclass Impatient(Callback):\n"
        "    def on_train_batch_end(self, trainer, *_):\n"
        "        if trainer.global_step == 3: os.kill(os.getpid(), signal.SIGINT)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert fit("--trust", "--trainer.callbacks=impatient.Impatient", steps=100) == 130
    assert capfd.readouterr().err.splitlines()[-1] == "interrupted"
    assert checkpoint()["global_step"] in (3, 4)
