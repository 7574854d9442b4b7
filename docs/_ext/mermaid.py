"""Sphinx's directive ``mermaid``, which draws the sequence diagrams of `sequence_diagram`."""

from docutils import nodes
from sequence_diagram import DiagramError, draw, parse
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective


class SequenceDiagramDirective(SphinxDirective):
    """Directive ``mermaid``: draw the diagram that its content describes."""

    has_content = True

    def run(self) -> list[nodes.Node]:
        """Return the drawing; formats other than HTML leave it out."""
        text = "\n".join(self.content)
        try:
            drawing = draw(parse(text))
        except DiagramError as error:
            raise self.error(str(error)) from None
        return [nodes.raw("", f'<div class="diagram">{drawing}</div>', format="html")]


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the directive with Sphinx."""
    app.add_directive("mermaid", SequenceDiagramDirective)
    app.add_css_file("diagram.css")
    return {"parallel_read_safe": True, "parallel_write_safe": True}
