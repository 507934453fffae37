"""Tokens, vocabulary and stores are pure functions of the texts, and pad is never a word."""

import pickle
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from unisono.data.files.cache import cached_directory
from unisono.data.sets.text import (
    PAD,
    UNK,
    TokenStore,
    Vocabulary,
    basic_english,
    build_vocabulary,
    tokenise,
)
from unisono.errors import ConfigError, DataError

TEXTS = ["a b a", "", "b c b d", "a"]


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("", []),
        ("Install TorchText using pip!", ["install", "torchtext", "using", "pip", "!"]),
        ("It's GOOD", ["it", "'", "s", "good"]),
        ('He said "no"', ["he", "said", "no"]),
        ("one.Two...", ["one", ".", "two", ".", ".", "."]),
        ("end<br /><br />start", ["end", "start"]),
        ("<BR />x", ["x"]),
        ("<br/>x", ["<br/>x"]),
        ('<br" />x', ["x"]),
        ("a,b (c)", ["a", ",", "b", "(", "c", ")"]),
        ("what?!", ["what", "?", "!"]),
        ("a;b:c", ["a", "b", "c"]),
        ("tab\tnew\nline\u00a0hard\u2003em\x1cfs", ["tab", "new", "line", "hard", "em", "fs"]),
        ("semi-colon & 7/10", ["semi-colon", "&", "7/10"]),
        ("CAFÉ İ", ["café", "i\u0307"]),
    ],
)
def test_basic_english_by_example(text, tokens):
    """The tokens of torchtext's basic_english, written out."""
    assert basic_english(text) == tokens


# The same rules as regular expressions, one after the other: the slow spelling as a yardstick.
SLOW = [(r"'", " '  "), (r'"', ""), (r"\.", " . "), (r"<br \/>", " "), (r",", " , "), (r"\(", " ( ")]
SLOW += [(r"\)", " ) "), (r"!", " ! "), (r"\?", " ? "), (r";", " "), (r":", " "), (r"\s+", " ")]


@given(st.text(st.sampled_from("aB '\".<br/>,()!?;:\t\n\x1c\x85\u2028\u200b\u3000É")) | st.text())
def test_basic_english_equals_the_regular_expressions(text):
    """Plain replacement and str.split give exactly what the chain of regular expressions gives."""
    line = text.lower()
    for pattern, replacement in SLOW:
        line = re.sub(pattern, replacement, line)
    assert basic_english(text) == line.split()


def test_vocabulary_order_and_specials():
    """Words are ordered by (-count, word) after <pad> and <unk>; rare ones and the specials' names go."""
    counts = {"b": 3, "a": 3, "z": 9, "rare": 1, "<unk>": 50, "<pad>": 50}
    vocabulary = build_vocabulary(counts, min_freq=2)
    assert vocabulary.words == ("<pad>", "<unk>", "z", "a", "b")
    assert len(vocabulary) == 5
    assert vocabulary.encode(["z", "rare", "<pad>", "<unk>", "b"]).tolist() == [2, UNK, UNK, UNK, 4]
    assert build_vocabulary(dict(reversed(counts.items())), min_freq=2) == vocabulary


@pytest.mark.parametrize("wrong", [{"min_freq": 0}, {"min_freq": 99}])
def test_vocabulary_settings_are_checked(wrong):
    """Settings that leave no word are refused with the bound."""
    with pytest.raises(ConfigError, match="expected"):
        build_vocabulary({"a": 3}, **wrong)


@given(st.lists(st.text(st.sampled_from("ab c<pad>unk.")), max_size=8))
def test_tokenised_texts_agree_with_the_plain_way(texts):
    """One pass with provisional numbers gives the tokens, counts and numbers of the obvious way."""
    found = tokenise(texts)
    plain = [basic_english(text) for text in texts]
    flat = [token for tokens in plain for token in tokens]
    assert [found.words[number] for number in found.ids] == flat
    assert found.offsets.tolist() == np.cumsum([0] + [len(tokens) for tokens in plain]).tolist()
    assert found.counts() == {word: flat.count(word) for word in found.words}
    vocabulary = build_vocabulary({"a": 2, "b": 1})
    encoded = found.encode(vocabulary)
    assert encoded.dtype == np.int32
    assert encoded.tolist() == vocabulary.encode(flat).tolist()
    assert PAD not in encoded


@pytest.mark.parametrize("content", ["{}", '["a", "b"]', '["<pad>", "<unk>", "a", "a"]', '["<pad>", 1]', "x"])
def test_vocabulary_file_is_checked(tmp_path, content):
    """A file that does not hold a vocabulary is refused; a saved one comes back equal."""
    path = tmp_path / "vocabulary.json"
    path.write_text(content)
    with pytest.raises(DataError, match="expected"):
        Vocabulary.load(path)
    vocabulary = build_vocabulary({"café": 1, "\ud800": 2})
    vocabulary.save(path)
    assert Vocabulary.load(path) == vocabulary
    with pytest.raises(DataError, match="No such file"):
        Vocabulary.load(tmp_path / "gone")


def build_store() -> TokenStore:
    tokenised = tokenise(TEXTS)
    return TokenStore(
        tokens=tokenised.encode(build_vocabulary(tokenised.counts())),
        offsets=tokenised.offsets,
        labels=np.array([0, 1, 0, 1]),
    )


def test_store_gives_texts_and_labels():
    """store[i] is the text's numbers and its label; an empty text stays empty."""
    store = build_store()
    assert len(store) == 4
    assert store.lengths().tolist() == [3, 0, 4, 1]
    assert [(tokens.tolist(), label) for tokens, label in (store[i] for i in range(4))] == [
        ([2, 3, 2], 0),
        ([], 1),
        ([3, 4, 3, 5], 0),
        ([2], 1),
    ]
    for index in (-1, 4):
        with pytest.raises(IndexError, match="0 <= index < 4"):
            store[index]
    assert repr(store) == "TokenStore(4 texts, 8 tokens)"


def test_store_is_mapped_and_pickles_as_its_path(tmp_path):
    """A store from a directory is read-only, small to send to a worker, and equal there."""
    store = build_store()
    entry = cached_directory(tmp_path / "entry", lambda directory: store.save(directory, "train"))
    found = TokenStore.open(entry, "train")
    assert not found.tokens.flags.writeable
    assert len(pickle.dumps(found)) < 400 + len(str(entry))
    for copy in (found, pickle.loads(pickle.dumps(found)), pickle.loads(pickle.dumps(store))):
        for name in ("tokens", "offsets", "labels"):
            assert np.array_equal(getattr(copy, name), getattr(store, name))
            assert getattr(copy, name).dtype == getattr(store, name).dtype


def test_store_refuses_changed_missing_and_foreign_files(tmp_path):
    """One changed byte, a missing split and an array of objects are DataErrors."""
    store = build_store()
    entry = cached_directory(tmp_path / "entry", lambda directory: store.save(directory, "train"))
    with pytest.raises(DataError, match="split 'test'"):
        TokenStore.open(entry, "test")
    path = entry / "train_tokens.npy"
    content = bytearray(path.read_bytes())
    content[-4] ^= 1
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"sha256 .* of train_tokens.npy.*Hint: delete"):
        TokenStore.open(entry, "train")

    def objects(directory):
        for name in ("tokens", "offsets", "labels"):
            np.save(directory / f"train_{name}.npy", np.array([{}]), allow_pickle=True)

    with pytest.raises(DataError, match="split 'train'"):
        TokenStore.open(cached_directory(tmp_path / "other", objects), "train")


@pytest.mark.parametrize(
    ("offsets", "labels"), [([0, 2], [0, 0]), ([1, 3], [0]), ([0, 2], [0]), ([0, 4, 3], [0, 0]), ([], [])]
)
def test_store_arrays_must_fit(offsets, labels):
    """Offsets that do not cut the tokens into one text per label are refused, as are wrong dtypes."""
    tokens = np.zeros(3, dtype=np.int32)
    with pytest.raises(DataError, match="offsets that rise from 0 to 3"):
        TokenStore(tokens=tokens, offsets=np.array(offsets, dtype=np.int64), labels=np.array(labels, dtype=np.int64))
    with pytest.raises(DataError, match="expected flat arrays"):
        TokenStore(tokens=tokens.astype(np.int64), offsets=np.array([0, 3]), labels=np.array([0]))
