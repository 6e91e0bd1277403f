"""The explorer's page: one HTML document with its own script, which asks this service alone."""

from __future__ import annotations

from importlib.resources import files

from jinja2 import Environment


def own_script_alone(nonce: str) -> str:
    """Returns the content security policy: the page's own script and style, this service alone."""
    return (
        f"default-src 'none'; script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'; "
        "connect-src 'self'; img-src data:; frame-ancestors 'none'; base-uri 'none'"
    )


def explore_page(name: str, nonce: str) -> str:
    """Returns the page as HTML.

    Args:
        name: of the model file.
        nonce: that marks the page's own script and style.
    """
    source = files("fedcircuits.serving").joinpath("explore.html").read_text(encoding="utf-8")
    return Environment(autoescape=True).from_string(source).render(name=name, nonce=nonce)
