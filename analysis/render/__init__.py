"""How things are shown, whatever they hold: grids, renderers, HTML pages, names, colours."""
