"""The 26 published architectures (arXiv:2603.14360v2), each a file that every command takes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from archsearch.architecture import Architecture
from archsearch.cli import main
from archsearch.model.language_model import HybridLM

FOLDER = Path(__file__).parents[1] / "search_spaces" / "published"
FILES = sorted(FOLDER.rglob("*.yaml"))
PURE = ("gated_deltanet", "mamba2", "m2rnn", "rnn", "gru", "attention")
HYBRID = ("hybrid_gated_deltanet", "hybrid_mamba2", "hybrid_m2rnn")
BEFORE_ATTENTION = {"410m": 3, "7b_moe": 5}

PARAMETERS = {  # with the input embedding, without the head: total and active
    "410m/gated_deltanet": (406_680_672, 406_680_672),
    "410m/mamba2": (407_784_576, 407_784_576),
    "410m/m2rnn": (410_736_576, 410_736_576),
    "410m/rnn": (406_665_600, 406_665_600),
    "410m/gru": (474_556_800, 474_556_800),
    "410m/attention": (406_373_376, 406_373_376),
    "7b_moe/m2rnn": (6_797_818_688, 1_135_508_288),
    "7b_moe/gated_deltanet": (6_769_039_088, 1_106_728_688),
}
STATES = {  # Table 7, and by hand: elements per layer and sequence
    "410m": {"gated_deltanet": 262_144, "mamba2": 262_656, "m2rnn": 86_016, "rnn": 1_360, "gru": 1_360},
    "7b_moe": {"gated_deltanet": 393_216, "mamba2": 393_216, "m2rnn": 135_168, "rnn": 2_048, "gru": 2_048},
}


def test_there_are_thirteen_of_each_size() -> None:
    mixed = {
        size: {f"{base}_m2rnn{count}" for base in HYBRID[:2] for count in (1, BEFORE_ATTENTION[size])}
        for size in STATES
    }
    expected = {f"{size}/{name}" for size in STATES for name in {*PURE, *HYBRID, *mixed[size]}}
    assert {str(path.relative_to(FOLDER).with_suffix("")) for path in FILES} == expected
    assert len(FILES) == 26


@pytest.fixture
def _without_drawing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skip what fills weights: on the meta device there is nothing to fill, and each takes milliseconds."""

    def keep(tensor: Tensor, *_: float, **__: float) -> Tensor:
        return tensor

    for name in ("normal_", "uniform_", "kaiming_uniform_", "ones_"):
        monkeypatch.setattr(nn.init, name, keep)


@pytest.mark.usefixtures("_without_drawing")
@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_figures_are_those_of_the_paper_and_of_the_built_model(path: Path) -> None:
    size, name = path.parent.name, f"{path.parent.name}/{path.stem}"
    architecture = Architecture.load(path)
    with torch.device("meta"):
        built = HybridLM(architecture)
    assert sum(p.numel() for p in built.parameters()) == architecture.num_parameters(head=True)
    figures = (architecture.num_parameters(), architecture.active_parameters())
    assert figures == PARAMETERS.get(name, figures)
    for layer in architecture.layers:
        assert layer.options.state_size(architecture.hidden_size) == STATES[size].get(layer.type, 0)
    said = re.findall(r"[\d,]{5,}", path.read_text().split("\n")[0].split(":", 2)[-1])
    states = {layer.options.state_size(architecture.hidden_size) for layer in architecture.layers} - {0}
    assert {int(number.replace(",", "")) for number in said} == {*figures, *states}


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_layers_stand_where_the_paper_has_them(path: Path) -> None:
    size, layers = path.parent.name, Architecture.load(path).layers
    assert len(layers) == {"410m": 24, "7b_moe": 40}[size]
    name, _, count = re.fullmatch(r"(?:hybrid_)?([a-z0-9_]*?)(_m2rnn(\d))?", path.stem).groups()  # type: ignore[union-attr]
    attention = range(4, len(layers), 8) if path.stem.startswith("hybrid_") else ()
    m2rnn = {None: (), "1": (0,)}.get(count, [index - 1 for index in attention])
    expected = ["attention" if i in attention else "m2rnn" if i in m2rnn else name for i in range(len(layers))]
    assert [layer.type for layer in layers] == expected
    assert {layer.options.rope for layer in layers if layer.type == "attention"} <= {name == "attention"}  # type: ignore[attr-defined]


def test_inspect_shows_what_is_active(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(FOLDER / "7b_moe/m2rnn.yaml")]) == 0
    shown = capsys.readouterr().out
    assert "6,797,818,688 with the input embedding, without the head" in shown
    assert "1,135,508,288 per token" in shown
    assert "moe 8 of 128 experts of 256, shared 1024" in shown
    assert main(["inspect", str(FOLDER / "410m/m2rnn.yaml")]) == 0
    shown = capsys.readouterr().out
    assert "active" not in shown
    assert "swiglu 2752" in shown
