"""Hooks of the site generator: files of the repository that pages link to, figures from records, formulas as MathML.

Pages are written for a plain git host first: links are relative, formulas stand between
dollars, the gallery is text. What differs on the site is done here, while it is built.
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
"""A link of a page to a file above it."""

FIGURE = re.compile(r"<!-- figure: ([\w.-]+)(?: \| ([^>\n]+))? -->")
"""A place in the gallery: the name of a panel of the report, and what it shows."""

REPORT = "<!-- report -->"
"""Where the gallery leads to the report that its figures are taken from."""

FORMULA = re.compile(
    r'<(span|div) class="arithmatex">\\([(\[])(.*?)\\[)\]]</\1>', flags=re.DOTALL
)


def on_files(files: Files, config: ProperDocsConfig) -> Files:
    """Add what pages refer to and what does not lie in docs/."""
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
    """Lead links to files of the repository to their copies, and put figures in their places."""

    def copied(match: re.Match[str]) -> str:
        inside = _repository_path(page.file.src_uri, match[1])
        if inside is None:
            return match[0]
        return f"]({_relative(f'repository/{inside}', page)})"

    def shown(match: re.Match[str]) -> str:
        return (
            f"![{match[2] or match[1]}]({_relative(f'gallery/{match[1]}.svg', page)})"
        )

    whole = f"[Every table and figure in one page]({_relative('gallery/report.html', page)}), as the command writes it."
    return FIGURE.sub(shown, OUTSIDE.sub(copied, markdown)).replace(REPORT, whole)


def on_page_content(
    content: str, page: Page, config: ProperDocsConfig, files: Files
) -> str:
    """Turn formulas into MathML, which browsers draw by themselves: no script, and nothing to fetch."""

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
    """Return where a relative link of a page leads in the repository, None where it stays among the pages."""
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
