"""Example of a package with plug-ins of garrison."""
