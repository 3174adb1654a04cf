# SPDX-License-Identifier: GPL-2.0-only
"""report.html with a name from the fuzzer everywhere: its elements and attributes are the same as with a harmless name."""

from __future__ import annotations

import dataclasses
import functools
from html.parser import HTMLParser
from typing import Any

import guard
import shown

with guard.instrumented():
    from nsight_report.export import html, page_data
    from nsight_report.plots.figures import Sheet

SHEET = Sheet.of(shown.CAPTURE, shown.SUMMARY)
NAME = [shown.HARMLESS]

# The template is translated once, and the page's data is one name: how that is embedded is what counts.
html.Environment = functools.partial(lambda made, **_choices: made, html.Environment(
    loader=html.FileSystemLoader(html._HERE / "page"), autoescape=True, undefined=html.StrictUndefined, trim_blocks=True,
    lstrip_blocks=True,
))  # type: ignore[assignment,misc]  # fmt: skip
html._text = functools.cache(html._text)
html.policy = lambda *_texts: ""  # type: ignore[assignment]
page_data.overview = lambda _sheet: {"texts": NAME}  # type: ignore[assignment]
page_data.lifetimes = lambda *_arguments: {1: page_data.embedded(NAME)}  # type: ignore[assignment]
page_data.left_out = lambda *_arguments: []  # type: ignore[assignment]


class Elements(HTMLParser):
    """Elements in order, each with the names of its attributes, and where each ends."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[Any] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, *(name for name, _value in attrs)))

    def handle_endtag(self, tag: str) -> None:
        self.found.append(tag)

    def handle_comment(self, data: str) -> None:
        self.found.append("comment")

    handle_decl = handle_pi = unknown_decl = handle_comment


def rendered(name: str) -> str:
    """The page, without the scripts and styles that are always the same."""
    NAME[0] = name
    name = shown.written(name)
    shown.CAPTURE.pipeline.manifest = shown.manifest(name)
    sheet = dataclasses.replace(SHEET, summary=shown.named(shown.SUMMARY, name))
    return html.render(sheet, [])


def one(data: bytes) -> None:
    """Render with ``data`` as the name."""
    text = rendered(shown.decoded(data))
    text.encode("utf-8", "replace")
    assert all(c.isprintable() or c in "\n\t" for c in _own(text)), "a character that nobody sees"
    assert Elements(_own(text)).found == EXPECTED, "markup of a name"


def _own(text: str) -> str:
    """What is not a script or style of the package."""
    for part in ALWAYS:
        text = text.replace(part, "")
    return text


ALWAYS = [html._text(name) for name in (*html._SCRIPTS, html._BEGIN, *html._STYLES)]
EXPECTED = Elements(_own(rendered(shown.HARMLESS))).found
guard.fuzz(one)
