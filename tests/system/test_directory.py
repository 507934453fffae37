"""Files are reached by name in a directory that is held open: no link, pipe or device is followed, read or written."""

import os

import pytest

from unisono.errors import CheckpointError
from unisono.system.directory import Directory, entered

WORDS = {"link": "a symbolic link", "dangling": "a symbolic link", "pipe": "a pipe", "device": "a device",
         "directory": "a directory", "socket": "a socket"}  # fmt: skip


pytestmark = pytest.mark.usefixtures("nothing_blocks")


def put(kind, path, precious):
    """Put what is no file in a file's place."""
    if kind == "link":
        path.symlink_to(precious)
    elif kind == "dangling":
        path.symlink_to(precious.with_name("not there"))
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "device":
        if os.geteuid():
            pytest.skip("needs root to make a device")
        os.mknod(path, 0o600 | 0o020000, os.makedev(1, 5))  # /dev/zero: without end
    elif kind == "socket":
        os.mknod(path, 0o600 | 0o140000)
    else:
        path.mkdir()


@pytest.fixture
def precious(tmp_path):
    file = tmp_path / "precious"
    file.write_text("mine")
    return file


@pytest.fixture
def place(tmp_path):
    (tmp_path / "place").mkdir()
    return tmp_path / "place"


@pytest.mark.parametrize("kind", WORDS)
@pytest.mark.parametrize("act", ["read", "append", "lock", "create"])
def test_what_is_no_file_is_refused_at_once(place, precious, kind, act):
    """Reading and writing by name say what is there instead; nothing blocks, and nothing is written elsewhere."""
    put(kind, place / "x", precious)
    with Directory.open(place) as home:
        if act == "create":
            with pytest.raises(FileExistsError):
                home.create("x")
        else:
            acts = {"read": home.read, "append": home.append,
                    "lock": lambda name: home.open_file(name, os.O_RDWR | os.O_CREAT)}  # fmt: skip
            with pytest.raises(CheckpointError, match=f"expected a file at {place}/x, found {WORDS[kind]}. Hint: "):
                acts[act]("x")
    assert precious.read_text() == "mine"
    assert not precious.with_name("not there").exists()


@pytest.mark.parametrize("kind", ["link", "dangling", "pipe", "device", "socket"])
def test_replacing_puts_a_file_in_its_place(place, precious, kind):
    """What has the name goes, be it a link, and what it led to is untouched; nothing else is left."""
    put(kind, place / "x", precious)
    with Directory.open(place) as home:
        home.replace("x", b"ours")
        assert home.read("x") == b"ours"
        assert home.names() == ["x"]
    assert precious.read_text() == "mine"


def test_the_controls(place, precious):
    """Plain opening follows a link, which the tests above would notice; a file is read, continued and replaced."""
    put("link", place / "x", precious)
    with (place / "x").open("a") as file:
        file.write("!")
    assert precious.read_text() == "mine!"
    with Directory.open(place) as home:
        home.replace("y", b"1")
        with home.append("y") as file:
            assert file.write(b"2") == 1
            file.write(b"34")
        assert home.read("y") == b"1234"
        assert home.read("z") is None
        assert home.status("z") is None


def test_a_name_that_can_be_guessed_leads_nowhere(place, precious, monkeypatch):
    """Even who knows the temporary name in advance gets no byte: it is created anew or not at all."""
    monkeypatch.setattr(os, "urandom", bytes)
    name = f".x.{bytes(8).hex()}.tmp"
    (place / name).symlink_to(precious)
    with Directory.open(place) as home, pytest.raises(FileExistsError):
        home.replace("x", b"ours")
    assert precious.read_text() == "mine"


@pytest.mark.parametrize("kind", ["link", "dangling", "pipe"])
@pytest.mark.parametrize("make", [True, False])
def test_a_directory_inside_is_no_link(place, tmp_path, kind, make):
    """A link to a directory elsewhere is not entered, whether or not the directory may be made."""
    (tmp_path / "elsewhere").mkdir()
    put(kind, place / "inner", tmp_path / "elsewhere")
    words = f"expected a directory at {place}/inner, found {WORDS[kind]}. Hint: "
    with Directory.open(place) as home, pytest.raises(CheckpointError, match=words):
        home.child("inner", make=make)
    assert not list((tmp_path / "elsewhere").iterdir())


def test_the_way_to_a_directory_is_followed_once(place, tmp_path):
    """A link that leads to it may be turned elsewhere later, and the directory renamed: files go where it is."""
    (tmp_path / "latest").symlink_to(place)
    with Directory.open(tmp_path / "latest") as home:
        (tmp_path / "latest").unlink()
        place.rename(tmp_path / "moved")
        home.replace("x", b"1")
    assert (tmp_path / "moved" / "x").read_bytes() == b"1"
    (tmp_path / "latest").symlink_to("moved")
    with pytest.raises(CheckpointError, match="found a symbolic link"):
        Directory.open(tmp_path / "latest", follow=False)
    with pytest.raises(FileNotFoundError):
        Directory.open(tmp_path / "not there", follow=False)


def test_removing_takes_links_and_not_what_they_lead_to(place, precious, tmp_path):
    """A tree with links to files and directories elsewhere goes; those stay."""
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "file").write_text("mine")
    (place / "tree" / "deep").mkdir(parents=True)
    (place / "tree" / "deep" / "link").symlink_to(tmp_path / "elsewhere")
    (place / "link").symlink_to(tmp_path / "elsewhere")
    (place / "file link").symlink_to(precious)
    with Directory.open(place) as home:
        for name in ("tree", "link", "file link", "not there"):
            home.remove(name)
        assert home.names() == []
    assert (tmp_path / "elsewhere" / "file").read_text() == precious.read_text() == "mine"


def test_a_file_with_a_second_name_is_copied_before_it_is_continued(place, precious):
    """A hard link to a file elsewhere, by a stranger or by a backup, does not let us write into that file."""
    os.link(precious, place / "x")
    with Directory.open(place) as home, home.append("x") as file:
        file.write(b"!")
    assert (place / "x").read_text() == "mine!"
    assert precious.read_text() == "mine"


def test_making_directories(tmp_path):
    """Missing parents are made, private to the owner; what is there stays as it is; a file in the way is an error."""
    with Directory.make(tmp_path / "a" / "b" / "c") as home:
        assert home.path == tmp_path / "a" / "b" / "c"
    assert {(tmp_path / name).stat().st_mode & 0o777 for name in ("a", "a/b", "a/b/c")} == {0o700}
    (tmp_path / "a").chmod(0o750)
    Directory.make(tmp_path / "a").close()
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o750
    (tmp_path / "file").touch()
    for wrong in ("file", "file/b"):
        with pytest.raises(NotADirectoryError):
            Directory.make(tmp_path / wrong)
    with entered(tmp_path / "new", make=True) as home, entered(home) as same:
        assert same is home
    assert home.descriptor == -1


def test_a_file_system_that_cannot_sync_names(place, monkeypatch):
    """Where a directory cannot be synced at all there is nothing more to be done; a disk that fails is an error."""
    with Directory.open(place) as home:
        monkeypatch.setattr(os, "fsync", lambda _: (_ for _ in ()).throw(OSError(22, "Invalid argument")))
        home.sync()
        monkeypatch.setattr(os, "fsync", lambda _: (_ for _ in ()).throw(OSError(5, "Input/output error")))
        with pytest.raises(OSError, match="Input/output"):
            home.sync()
