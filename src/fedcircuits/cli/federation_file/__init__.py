"""Federation files (TOML): reading one with errors that name the line, and drafting one."""

from fedcircuits.cli.federation_file.read import FederationFile, read_federation, read_parties

__all__ = ["FederationFile", "read_federation", "read_parties"]
