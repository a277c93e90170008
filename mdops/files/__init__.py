"""Files of the package and of its cache: found, locked, and replaced as a whole. Nothing here needs the ops."""
