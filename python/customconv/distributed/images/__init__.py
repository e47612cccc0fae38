"""Images that are sharded along a spatial dimension, and the functions that take them."""
