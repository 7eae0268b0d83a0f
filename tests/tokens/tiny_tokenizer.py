"""A tokenizer file made on the spot."""

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

SENTENCES = ["the cat sat on the mat", "the dog sat on the log", "naïve café, été", "x = [1, 2, 3]\n"]


def train_tokenizer(path):
    """Write a byte-level BPE tokenizer of 280 tokens; <|endoftext|> is 1."""
    library = Tokenizer(models.BPE())
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=280,
        special_tokens=["<pad>", "<|endoftext|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    library.train_from_iterator(SENTENCES * 20, trainer)
    library.save(str(path))
    return path
