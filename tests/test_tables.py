"""Pages that benchmarks write: lines of docs are filled, tables and code stay as they are."""

from __future__ import annotations

from tables import WIDTH, wrapped


def test_paragraphs_and_items_are_filled_and_words_kept() -> None:
    words = " ".join(["word"] * 60)
    text = f"{words}\n\n- {words}\n  and more\n1. {words}"
    lines = wrapped(text).splitlines()
    assert max(map(len, lines)) <= WIDTH
    assert " ".join(wrapped(text).split()) == " ".join(text.split())
    assert [line[:3] for line in lines if line.startswith("  ")]  # items hang below their marker


def test_tables_titles_and_code_are_left_alone() -> None:
    long = "x" * 200
    text = f"# {long}\n\n| {long} | {long} |\n\n```\n{long} {long}\n```\n\n    {long} {long}\n"
    assert wrapped(text) == text


def test_filling_twice_changes_nothing() -> None:
    once = wrapped("a " * 100 + "\n- b " + "c " * 100 + "\n\n2. d " + "e " * 100)
    assert wrapped(once) == once
