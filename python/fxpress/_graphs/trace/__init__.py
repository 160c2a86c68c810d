"""Speed up traces of `make_fx`, for exports and for decompositions."""
