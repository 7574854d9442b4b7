"""The benchmark of what tasks of an event loop take, beside floors that are made of the loop and a socket alone."""
