"""Everything that a study's results are shown as, pages and figures; `catalog` lists them."""
