"""kill -9 everywhere: nothing lost, nothing twice."""
