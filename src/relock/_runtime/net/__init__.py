"""URLs, addresses and sockets of servers, and the failures of servers that gave no answer."""
