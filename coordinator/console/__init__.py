"""The console: one page that shows a cluster to a user who has logged in, and changes nothing.

`listener` takes connections, `http_exchange` reads requests from them and writes answers (HTTP/1.1
by h11), `console_site` decides who gets what, `console_client` reads the cluster as the user, by
the same handlers as a call from outside, and `live_events` tells a page what has changed. The page
itself is in `page/`.
"""
