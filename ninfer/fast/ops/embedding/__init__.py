"""Token ids → embedding rows, decoded from the artifact format."""
