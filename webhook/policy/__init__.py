"""The admin's YAML: what a policy may say, how it is loaded, linted and tested."""
