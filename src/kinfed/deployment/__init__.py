"""A federation on Flower, deployed: settings of a run, data at a node, the server's part, and what one starts from."""
