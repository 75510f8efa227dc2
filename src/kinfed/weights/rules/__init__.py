"""Weight rules; `kinfed.weights.weighing` names them all."""
