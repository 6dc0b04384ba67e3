"""Studies that come with the package, one file each: `python -m sweeps studies` lists them."""
