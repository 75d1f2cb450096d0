"""One application over HTTP for all that speaks to clients: who they are, what they may, and how much at once.

States of a request: refused (host, origin, path, token, too much) → admitted → answered, or ended with its token.

1. What is mounted sees no request without a token in force; `caller(scope)` is this token.
2. A request ends, at the latest, when its token does.
3. Nothing that a request carries is logged but its method, its path and the name of its token.
"""
