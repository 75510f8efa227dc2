"""Weight rules, one file each; `kinfed.weights.registry` names them all."""
