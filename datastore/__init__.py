"""What is true: record kinds, the store, the journal, YAML files, the index, file watching.

Knows nothing of controllers or of the network. Paths and files never leave this package.
"""
