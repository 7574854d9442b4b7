"""What tasks of an event loop ask for, carried out on that loop; what works in the background stays on its threads."""
