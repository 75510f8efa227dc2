"""What the federation says of an agent's coefficients before its rows are seen, and how such priors are stacked."""
