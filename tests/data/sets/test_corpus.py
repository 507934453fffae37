"""Texts for a language model become token files: read strictly, held out whole, cut once per machine."""

import numpy as np
import pytest

from unisono.data.sets import corpus
from unisono.data.sets.corpus import END, load_corpus, load_tokeniser
from unisono.errors import ConfigError, DataError

needed = pytest.mark.usefixtures("_library")


@pytest.fixture
def _library():
    pytest.importorskip("tokenizers", reason="needs the extra recipes")


def texts(folder, count=25):
    folder.mkdir(parents=True)
    for number in range(count):
        (folder / f"{number:02}.txt").write_text(
            f"Text {number} tells of the sea, the {number} ships and the wind.\n" * 3
        )
    return folder


def documents(path):
    tokens = np.fromfile(path, np.uint16)
    return [part[part != END].tolist() for part in np.split(tokens, np.flatnonzero(tokens == END) + 1)[:-1]]


@needed
def test_documents_come_back_and_every_tenth_is_held_out(tmp_path):
    """The tokens of each document decode to its text, in the order of the names; number 9, 19, ... are held out."""
    found = load_corpus(texts(tmp_path / "own"), vocabulary=600, cache=tmp_path / "cache")
    tokeniser = load_tokeniser(found.tokeniser.read_bytes())
    expected = [path.read_text().strip() for path in sorted((tmp_path / "own").iterdir())]
    for path, wanted in (
        (found.test, expected[9::10]),
        (found.train, [text for number, text in enumerate(expected) if number % 10 != 9]),
    ):
        assert [tokeniser.decode(tokens) for tokens in documents(path)] == wanted
    assert found.vocabulary == tokeniser.get_vocab_size() <= 600
    assert found.facts["train_documents"] == 23
    assert found.facts["test_tokens"] == found.test.stat().st_size // 2


@needed
def test_it_is_prepared_once(tmp_path, monkeypatch):
    """The same texts elsewhere have the same entry; another text, vocabulary or limit have others."""
    first = load_corpus(texts(tmp_path / "own"), cache=tmp_path / "cache")
    texts(tmp_path / "copy")
    with monkeypatch.context() as never:
        never.setattr(corpus, "_save", None)
        assert load_corpus(tmp_path / "copy", cache=tmp_path / "cache").train == first.train
    assert load_corpus(tmp_path / "own", vocabulary=512, cache=tmp_path / "cache").train != first.train
    few = load_corpus(tmp_path / "own", limit=4, cache=tmp_path / "cache")
    assert few.facts["train_documents"] == 4
    assert few.facts["test_documents"] == 2
    (tmp_path / "own" / "03.txt").write_text("another one")
    assert load_corpus(tmp_path / "own", cache=tmp_path / "cache").train != first.train


@needed
def test_what_is_a_document(tmp_path):
    """Files; parts of a file between marks; of a single document the last tenth of the lines is held out."""
    (tmp_path / "marked").write_text("one\n<|endoftext|>\ntwo\nlines<|endoftext|>three")
    found = load_corpus(tmp_path / "marked", cache=tmp_path)
    assert (found.facts["train_documents"], found.facts["test_documents"]) == (2, 1)
    (tmp_path / "poem").write_text("".join(f"line {number}\n" for number in range(20)))
    found = load_corpus(tmp_path / "poem", cache=tmp_path)
    assert load_tokeniser(found.tokeniser.read_bytes()).decode(documents(found.test)[0]) == "line 18\nline 19"
    for split in ("train", "test"):
        texts(tmp_path / "split" / split, 3)
    assert load_corpus(tmp_path / "split", cache=tmp_path).facts["test_documents"] == 3
    found = load_corpus(tmp_path / "marked", test_data=tmp_path / "poem", cache=tmp_path)
    assert found.facts["test_documents"] == 1


@needed
def test_film_reviews_are_held_out_by_film(tmp_path):
    """Every tenth review of the test part, whose films are others; line ends in place of their marks."""
    for split in ("train", "test"):
        for label in ("pos", "neg"):
            (folder := tmp_path / "aclImdb" / split / label).mkdir(parents=True)
            for number in range(10):
                (folder / f"{number}_7.txt").write_text(f"{split} {label} {number}<br />good")
    found = load_corpus(tmp_path, cache=tmp_path / "cache")
    tokeniser = load_tokeniser(found.tokeniser.read_bytes())
    assert [tokeniser.decode(tokens) for tokens in documents(found.test)] == ["test neg 0\ngood", "test pos 0\ngood"]
    assert found.facts["train_documents"] == 20


@needed
def test_texts_that_are_none(tmp_path):
    """What is missing, empty, in another encoding or too little is one line with what to do; nothing is downloaded."""
    (tmp_path / "folder").mkdir()
    (tmp_path / "empty").touch()
    (tmp_path / "latin").write_bytes("süß".encode("latin-1"))
    (tmp_path / "line").write_text("one line")
    for name, told in (
        ("nothing", "expected a text file or a folder of them, found nothing"),
        ("folder", r"expected \.txt files in this folder, found none"),
        ("empty", "expected texts to train on and texts to hold out"),
        ("latin", "expected UTF-8, found byte 0xfc at byte 1"),
        ("line", "Hint: at least 2 documents, or 2 lines of one"),
    ):
        with pytest.raises(DataError, match=told) as error:
            load_corpus(tmp_path / name, cache=tmp_path / "cache")
        assert str(tmp_path / name) in str(error.value)
    with pytest.raises(DataError, match=r"no download was allowed.*Or: --data"):
        load_corpus(None, cache=tmp_path / "cache")


def test_without_the_library(tmp_path, monkeypatch):
    """The extra that brings it is named."""
    monkeypatch.setitem(__import__("sys").modules, "tokenizers", None)
    with pytest.raises(ConfigError, match=r"pip install .*'tokenizers"):
        load_corpus(tmp_path, cache=tmp_path)
