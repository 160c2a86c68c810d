"""What makes traces of `make_fx` faster, for exports and for decompositions."""
