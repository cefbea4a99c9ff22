"""REST: one route for each use case of the service, and no logic.

app.py         the application: its routes, under /v1 and bare; its OpenAPI document
access.py      who may do what: tokens, the login of the page, hosts and origins, limits of requests
problems.py    errors as RFC 9457 has them
shapes.py      what answers look like
pages.py       opaque cursors
health.py, pipelines.py, …   the routes
"""
