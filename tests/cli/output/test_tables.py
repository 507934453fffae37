"""Tables for people: columns line up, nothing is cut, 80 columns in a pipe."""

from unisono.cli.output.tables import table


def test_columns_line_up():
    """Numbers flush right, words flush left, an empty column left out, no blanks at the end; [text] is no markup."""
    rows = [("exact", 1, None, "[bold]all[/]"), ("a longer name", 12_345, None, "x")]
    assert table(("name", "count", "nothing", "rest"), rows, left=("name", "rest")) == [
        "name           count  rest",
        "exact              1  [bold]all[/]",
        "a longer name  12345  x",
    ]


def test_a_wide_table_goes_on_below(monkeypatch):
    """With its first column again; a wider terminal shows it whole; a long word at the end stands out, uncut."""
    head = ("ranks", *(f"column_{number}" for number in range(9)))
    rows = [(8, *[f"{number}.5 ms" for number in range(9)])]
    lines = table(head, rows)
    assert max(map(len, lines)) <= 80
    assert [line.split()[0] for line in lines] == ["ranks", "8", "ranks", "8"]
    assert all(f"{number}.5 ms" in "".join(lines) for number in range(9))
    monkeypatch.setenv("COLUMNS", "200")
    assert len(table(head, rows)) == 2
    monkeypatch.setenv("COLUMNS", "40")
    assert table(("n", "print"), [(1, "f" * 64)], left=("print",))[1] == f"1 {'f' * 64}"


def test_nothing_measured_is_an_empty_table():
    """No rows, no columns."""
    assert table(("a", "b"), []) == []
