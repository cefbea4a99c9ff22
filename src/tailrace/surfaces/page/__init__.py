"""The page: what `tailrace serve` shows at `/`. It is made on the server, of what the service tells, and has no logic.

answers.py     HTML answers, and errors as pages
figures.py     numbers, times and sizes as people read them; what is not known is never zero
overview.py    all pipelines, the worst first
pipeline.py    one pipeline: its flow (flow.py), its tables, what became of it (band.py), what is done to it
document.py    its document: as it was, and from an edit over a plan to what is applied
admin.py       tokens, and who did what
login.py       a token becomes a cookie
contract.py    the OpenAPI document, to be read without scripts of elsewhere
templates/     what is shown; static/: how it looks, and what keeps it up to date in the browser
"""

from tailrace.surfaces.page.application import with_page

__all__ = ["with_page"]
