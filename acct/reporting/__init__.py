"""From per-example records to intervals, tables and figures. Nothing here needs a model, a GPU or a network."""
