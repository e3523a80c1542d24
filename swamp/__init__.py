"""How people and machines talk to it: command line, HTTP API, worker gateway, worker."""

__version__ = "0.1.0"
