from __future__ import annotations

import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
import torch

from archsearch import registry
from archsearch.architecture import Architecture
from archsearch.config import ConfigError, Where
from archsearch.model.language_model import HybridLM

SMALL = {"hidden_size": 16, "vocab_size": 7, "pattern": "LAL", "mlp": {"intermediate_size": 24}}


@pytest.mark.usefixtures("third_party")
def test_a_third_party_mixer_is_composed_by_its_letter() -> None:
    architecture = Architecture.from_dict({**SMALL, "mixers": {"A": {"type": "attention"}}}, Where("test"))
    model = HybridLM(architecture)
    assert [layer.type for layer in architecture.layers] == ["leaky_average", "attention", "leaky_average"]
    assert sum(p.numel() for p in model.parameters()) == architecture.num_parameters(head=True)
    assert architecture.state_size == 2 * 16
    logits, states = model(torch.tensor([[1, 2, 3]]))
    assert logits.shape == (1, 3, 7)
    assert states is not None
    assert len(states) == 3


@pytest.mark.usefixtures("third_party")
def test_a_third_party_mixer_takes_options_from_yaml_and_refuses_bad_ones() -> None:
    values = {**SMALL, "mixers": {"L": {"type": "leaky_average", "keep": 1.5}}}
    with pytest.raises(ConfigError, match=r"test: mixers\.L: leaky_average: 0 <= keep < 1 must hold; got 1\.5"):
        Architecture.from_dict(values, Where("test"))


@pytest.mark.usefixtures("empty_plugin_slot")
def test_an_entry_point_registers_a_mixer(monkeypatch: pytest.MonkeyPatch) -> None:
    entry_point = EntryPoint(name="leaky", value="leaky_average", group=registry.ENTRY_POINTS)
    monkeypatch.setattr(registry, "entry_points", lambda group: [entry_point] if group == entry_point.group else [])
    assert "leaky_average" not in registry.names()
    registry._load.cache_clear()
    assert "leaky_average" in registry.names()
    assert registry.default_letters()["L"].name == "leaky_average"


@pytest.mark.usefixtures("empty_plugin_slot")
def test_without_the_plugin_its_letter_and_name_are_unknown() -> None:
    with pytest.raises(ConfigError, match="unknown letter 'L' at position 1"):
        Architecture.from_dict(SMALL, Where("test"))
    with pytest.raises(ConfigError, match="unknown mixer 'leaky_average'; known: attention"):
        registry.get("leaky_average")


def test_a_plugin_that_cannot_be_imported_is_an_error_of_the_users() -> None:
    with pytest.raises(ConfigError, match="--plugin no_such_package: cannot be imported: No module named"):
        registry.import_plugin("no_such_package")


def test_a_plugin_lies_in_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [*sys.path])
    (tmp_path / "module_of_mine.py").write_text("here = True")
    (tmp_path / "half_a_module.py").write_text("here = (")
    registry.import_plugin("module_of_mine")
    assert sys.modules.pop("module_of_mine").here
    with pytest.raises(ConfigError, match=r"--plugin half_a_module: cannot be imported: '\(' was never closed"):
        registry.import_plugin("half_a_module")


@pytest.mark.usefixtures("third_party")
def test_a_name_or_letter_that_is_taken_is_refused() -> None:
    options = registry.get("leaky_average").options

    class Other(torch.nn.Module):
        pass

    with pytest.raises(ValueError, match="mixer 'leaky_average' is already registered by leaky_average"):
        registry.register("leaky_average", options=options)(Other)
    with pytest.raises(ValueError, match="mixer 'other': letter 'M' already stands for 'm2rnn'"):
        registry.register("other", options=options, letters="M")(Other)
