"""Write days from sources, without sockets."""
