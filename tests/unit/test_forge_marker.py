"""Markers of what garrison writes on a forge."""

from __future__ import annotations

import pytest

from garrison.forge.marker import attach, has_marker, make_marker


def test_a_marker_is_attached_once_and_found_among_other_lines() -> None:
    marker = make_marker("run-1", "pull")
    body = attach("Text\n", marker)
    assert body == f"Text\n\n{marker}"
    assert attach(body, marker) == body
    assert has_marker(body.replace("\n", "\r\n") + "\nmore", marker)


def test_a_quoted_marker_and_that_of_another_run_do_not_count() -> None:
    marker = make_marker("run-1", "pull")
    assert not has_marker(f"> {marker}", marker)
    assert not has_marker(make_marker("run-10", "pull"), marker)


@pytest.mark.parametrize("part", ["", "a -->", "a b", "a\nb", "x" * 201])
def test_a_part_that_could_end_the_comment_is_refused(part: str) -> None:
    with pytest.raises(ValueError, match="not a marker"):
        make_marker("run", part)


def test_hyphens_do_not_end_the_comment() -> None:
    marker = make_marker("a--b", "pull")
    assert "--" not in marker.removeprefix("<!--").removesuffix("-->")
    assert marker != make_marker("a-b", "pull")
