"""The command line: one module per command group, imported only when it is called."""
