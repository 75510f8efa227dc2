"""Where the rows are: the agents as an algorithm sees them, and the two ways to be that.

Reading order: `agents` (what an algorithm may ask), `pooled` (all rows here), `wire` (what is said), `spec` (what all agree
on), `site` (what a site answers), `handshake` (how agents that have never met come to an agreement), `transport` (whom to
ask, what to believe), `request_batching` (several jobs that ask at once), `server` (every agent a site that answers
messages), and `flower` (those messages on Flower).
"""
