"""The federation on Flower: the same tasks, carried by Flower's messages.

`records` puts requests and replies into Flower's form, `channel` sends them over a Grid, `grid` is a Grid within one
process, `client_app` and `server_app` are the two apps, `site` finds an agent's data from a node's configuration, `options`
are those of a run, and `folder` and `certificates` write what a deployment starts from.

Nothing of Flower is imported here. Call `environment.require_flower` before any of the other modules is imported: Flower
decides on its first import whether it sends telemetry.
"""
