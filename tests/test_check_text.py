"""The check of the pages' English finds what it is for, and finds nothing on the pages."""

import pytest

from test_search import load

check_text = load("check_text")


def test_the_pages_are_in_plain_english(capsys):
    """No phrase of the list, no sentence that is too long."""
    assert check_text.main([]) == 0, capsys.readouterr().out
    assert len(check_text.pages()) > 60


LONG = "A " + "word " * 40 + "too many."


@pytest.mark.parametrize(
    ("page", "line", "said"),
    [
        ("# T\n\nFine.\n\nIt joins\nthe world it finds.\n", 5, "'joins the world it finds': finds the other workers"),
        ("| a | You simply start it. |\n", 1, "'simply': leave the word out"),
        (f"Short.\n\n- An item.\n- {LONG}\n", 4, "a sentence of 43 words: at most 32"),
        (f"```text\ncode\n```\n\nOne. {LONG} Three.\n", 5, "a sentence of 43 words"),
        (f"Short.\n\n{'word ' * 30}end:\n{'word ' * 30}end.", 3, "a sentence of 62 words: at most 32, 50 with colons"),
        (f"| a | b |\n|---|---|\n| short | {LONG} And. |\n", 3, "a sentence of 43 words"),
        ("# T\n" + "\nFine.\n" * 65, 1, "131 lines and no list of sections"),
    ],
)
def test_what_is_not_plain_is_found(page, line, said):
    """The control: with the line on which it stands, and what to write."""
    ((where, complaint),) = check_text.found_in(page)
    assert where == line
    assert complaint.startswith(said)


HALVES = f"{'word ' * 24}:\n{'word ' * 24}."
LISTED = "**On this page**: x" + "\nFine.\n" * 65
ROWS = f"| {'word ' * 30} | {'word ' * 30} |\n" * 2


@pytest.mark.parametrize(
    "page", ["`simply`\n", '"simply"\n', "```text\njust simply\n```\n", HALVES, ROWS, f"# {LONG}", LISTED]
)
def test_what_is_left_alone(page):
    """Code, headings; the parts of a sentence that a colon divides; the cells of a table."""
    assert list(check_text.found_in(page)) == []
