"""AMD's HIP runtime: what the hip collector is made of."""
