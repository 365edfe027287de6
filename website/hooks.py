"""Hooks of the site generator.

Pages are written for a git host: links are relative, formulas stand between dollar
signs, and the gallery has comments in the places of figures. When the site is built,
these hooks copy files of the repository that pages link to, insert the figures, and
convert formulas to MathML.
"""

from __future__ import annotations

import html
import posixpath
import re
from pathlib import Path
from typing import TYPE_CHECKING

import latex2mathml.converter
from properdocs.exceptions import PluginError
from properdocs.structure.files import File, Files

if TYPE_CHECKING:
    from properdocs.config.defaults import ProperDocsConfig
    from properdocs.structure.pages import Page

OUTSIDE = re.compile(r"\]\(((?:\.\./)+[\w./-]+)\)")
"""A link of a page to a file outside its folder."""

FIGURE = re.compile(r"<!-- figure: ([\w.-]+)(?: \| ([^>\n]+))? -->")
"""A place for a figure in the gallery: name of a panel of the report, and its caption."""

REPORT = "<!-- report -->"
"""The place in the gallery for the link to the whole report."""

FORMULA = re.compile(
    r'<(span|div) class="arithmatex">\\([(\[])(.*?)\\[)\]]</\1>', flags=re.DOTALL
)


def on_files(files: Files, config: ProperDocsConfig) -> Files:
    """Add files outside docs/ that pages link to, and the figures of the report."""
    for source in [file for file in files if file.is_documentation_page()]:
        text = source.content_string
        for path in OUTSIDE.findall(text):
            inside = _repository_path(source.src_uri, path)
            if (
                inside is not None
                and files.get_file_from_path(f"repository/{inside}") is None
            ):
                files.append(
                    File.generated(
                        config,
                        f"repository/{inside}",
                        abs_src_path=str(_existing(config, inside)),
                    )
                )
        for name, _ in FIGURE.findall(text):
            _append_figure(files, config, name)
    report = _report(config) / "index.html"
    files.append(
        File.generated(config, "gallery/report.html", abs_src_path=str(_made(report)))
    )
    return files


def on_page_markdown(
    markdown: str, page: Page, config: ProperDocsConfig, files: Files
) -> str:
    """Point links to copies of repository files, and insert the figures of the gallery."""

    def copied(match: re.Match[str]) -> str:
        inside = _repository_path(page.file.src_uri, match[1])
        if inside is None:
            return match[0]
        return f"]({_relative(f'repository/{inside}', page)})"

    def shown(match: re.Match[str]) -> str:
        return (
            f"![{match[2] or match[1]}]({_relative(f'gallery/{match[1]}.svg', page)})"
        )

    whole = f"[Every table and figure in one page]({_relative('gallery/report.html', page)}), as `evergrow lab report` writes it."
    return FIGURE.sub(shown, OUTSIDE.sub(copied, markdown)).replace(REPORT, whole)


def on_page_content(
    content: str, page: Page, config: ProperDocsConfig, files: Files
) -> str:
    """Convert formulas to MathML, which browsers draw without a script."""

    def drawn(match: re.Match[str]) -> str:
        display = "block" if match[2] == "[" else "inline"
        formula = latex2mathml.converter.convert(
            html.unescape(match[3]).strip(), display=display
        )
        if display == "block":
            return f'<div class="formula">{formula}</div>'
        return formula

    return FORMULA.sub(drawn, content)


def _repository_path(page: str, link: str) -> str | None:
    """Return the repository path of a link, or None if it is a page or outside."""
    target = posixpath.normpath(posixpath.join("docs", posixpath.dirname(page), link))
    return None if target.startswith(("docs/", "../")) else target


def _relative(target: str, page: Page) -> str:
    return posixpath.relpath(target, posixpath.dirname(page.file.src_uri) or ".")


def _append_figure(files: Files, config: ProperDocsConfig, name: str) -> None:
    uri = f"gallery/{name}.svg"
    if files.get_file_from_path(uri) is None:
        path = _made(_report(config) / "figures" / f"{name}.svg")
        files.append(File.generated(config, uri, abs_src_path=str(path)))


def _report(config: ProperDocsConfig) -> Path:
    return Path(config.config_file_path).parent / "build" / "report"


def _made(path: Path) -> Path:
    if not path.is_file():
        raise PluginError(
            f"{path.name} must be in the report of the committed records: make docs draws it first"
        )
    return path


def _existing(config: ProperDocsConfig, inside: str) -> Path:
    path = Path(config.config_file_path).parent / inside
    if not path.is_file():
        raise PluginError(
            f"{inside} must be a file of the repository, since a page links to it"
        )
    return path
