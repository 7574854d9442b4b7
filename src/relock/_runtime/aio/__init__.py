"""Part of a client on event loops: it carries out what tasks ask for; the background stays on its threads."""
