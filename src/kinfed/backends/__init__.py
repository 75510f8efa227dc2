"""Where the rows are: the agents as an algorithm sees them, and the two ways to be that.

Reading order: `agents` (what an algorithm may ask), `pooled` (all rows here), `sketches` (the one vector, asked for),
`wire` (what is said), `spec` (what all agree on), `site` (what a site answers), `redaction` (what it does not say),
`handshake` and `agreement` (how agents that have never met come to one recipe), `transport` (whom to ask, what to
believe), `audit` (what crossed), `request_batching` (several jobs that ask at once), `server` (every agent a site that
answers messages), and `flower` (those messages on Flower).
"""
