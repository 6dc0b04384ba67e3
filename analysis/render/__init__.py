"""How things are shown, whatever they hold: pages, text, LaTeX, HTML, figures and their look."""
