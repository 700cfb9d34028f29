"""Other machines: the service that works on a host, how it is set up there, and the work of a claim."""
