"""Writing a folder in one go."""

import os

import pytest

from archsearch.files import write_folder_atomic


def test_the_old_folder_comes_back_where_the_new_one_cannot_take_its_place(tmp_path, monkeypatch):
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "old").touch()
    replace = os.replace

    def interrupted(source, target):
        if source.name == "new":
            raise KeyboardInterrupt
        replace(source, target)

    monkeypatch.setattr("archsearch.files.os.replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_folder_atomic(tmp_path / "model", lambda folder: folder.mkdir())
    assert [path.name for path in tmp_path.rglob("*")] == ["model", "old"]
