"""Archives of programs: zip files with a graph, its weights, constants and example inputs."""
