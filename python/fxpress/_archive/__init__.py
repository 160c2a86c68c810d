"""The archive around a program: a zip file with its graph, its weights and what goes with them."""
