"""Executing the call of a step as a child process, the same way on a worker and on the server.

It stays free of imports: the guard process loads this package without any library.
"""
