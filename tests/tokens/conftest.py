import pytest

from tests.tokens.tiny_tokenizer import train_tokenizer


@pytest.fixture(scope="session")
def tokenizer_file(tmp_path_factory):
    return train_tokenizer(tmp_path_factory.mktemp("tokenizer") / "tokenizer.json")
