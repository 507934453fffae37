"""Where a secret comes from: never from a file that others may read, never shown in a message."""

import os
import stat
import threading

import pytest

from unisono.errors import ConfigError
from unisono.store.secret import derive, given_secret, key_of, new_secret, user_secret

WORD = "a-word-that-nobody-guesses"


def secret_file(folder, mode=0o600, text=WORD + "\n"):
    path = folder / "secret-of-a-test"
    path.write_text(text)
    path.chmod(mode)
    return path


def test_from_the_environment(tmp_path):
    """Itself, or a file that only the owner may read; nothing given is None; both are refused."""
    path = str(secret_file(tmp_path))
    assert given_secret({}) is None
    assert given_secret({"UNISONO_SECRET": WORD}) == WORD
    assert given_secret({"UNISONO_SECRET_FILE": path}) == WORD
    with pytest.raises(ConfigError, match="say the same"):
        given_secret({"UNISONO_SECRET": WORD, "UNISONO_SECRET_FILE": path})


@pytest.mark.parametrize("mode", [0o604, 0o640, 0o620, 0o644])
def test_a_file_that_others_may_read(tmp_path, mode):
    """Refused with owner, mode and remedy, and without the word."""
    path = secret_file(tmp_path, mode)
    with pytest.raises(ConfigError, match=rf"got owner {os.geteuid()} and mode {mode:04o}. Hint: chmod 600") as caught:
        given_secret({"UNISONO_SECRET_FILE": str(path)})
    assert WORD not in str(caught.value)


def test_files_that_are_none(tmp_path):
    """A link, a directory, a pipe and nothing at all are refused at once."""
    link, pipe = tmp_path / "link", tmp_path / "pipe"
    link.symlink_to(secret_file(tmp_path))
    os.mkfifo(pipe, 0o600)
    for path, words in (
        (link, "symbolic links"),
        (tmp_path, "another kind"),
        (pipe, "another kind"),
        (tmp_path / "no", "No such"),
    ):
        with pytest.raises(ConfigError, match=words):
            given_secret({"UNISONO_SECRET_FILE": str(path)})


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_a_file_of_somebody_else(tmp_path):
    """Whoever owns it could have chosen it."""
    path = secret_file(tmp_path)
    os.chown(path, 65534, 65534)
    with pytest.raises(ConfigError, match="got owner 65534"):
        given_secret({"UNISONO_SECRET_FILE": str(path)})


@pytest.mark.parametrize("word", ["short", "two words of many letters", "x" * 5000, "ümläute-sind-nicht-dabei"])
def test_words_that_are_none(word):
    """Too short, with spaces, endless, or no ASCII; the message does not say which word it was."""
    with pytest.raises(ConfigError, match="16 or more printable") as caught:
        given_secret({"UNISONO_SECRET": word})
    assert word not in str(caught.value)


def test_a_users_own(tmp_path):
    """Made once, whoever comes first, in a file and directory of the user alone; the second use finds it."""
    cache, found = tmp_path / "cache", []
    threads = [threading.Thread(target=lambda: found.append(user_secret(cache))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8
    assert set(found) == {user_secret(cache)}
    assert stat.S_IMODE(cache.stat().st_mode) == 0o700
    assert stat.S_IMODE((cache / "secret").stat().st_mode) == 0o600
    assert [path.name for path in cache.iterdir()] == ["secret"]
    (cache / "secret").chmod(0o644)
    with pytest.raises(ConfigError, match="mode 0644"):
        user_secret(cache)


def test_no_place_for_a_users_own(tmp_path):
    """A cache that cannot be written to is told, with the way without it."""
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"expected a place for a secret at .*Hint: give all .* UNISONO_SECRET"):
        user_secret(tmp_path / "file" / "cache")


def test_secrets_of_secrets():
    """Each purpose has its own, always the same; a new one is one word of 32 characters."""
    assert derive(WORD, "a") == derive(WORD, "a")
    assert len({WORD, derive(WORD, "a"), derive(WORD, "b"), derive(WORD + "!", "a")}) == 4
    assert len({key_of(WORD), key_of(derive(WORD, "a"))}) == 2
    assert given_secret({"UNISONO_SECRET": new_secret()}) != new_secret()
    assert len(new_secret()) == 32
