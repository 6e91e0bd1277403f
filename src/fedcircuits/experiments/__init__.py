"""The paper's tables and figures, one command each: `fedcircuits experiment NAME`.

    NAME.toml        what is run: data, settings, models, seeds, the paper's figures
    experiment.py    reads such a file; a cell is one data set, setting, model and seed
    run.py           runs the cells that are not yet recorded, and shows progress
    records.py       one tidy row a cell, in one Parquet file
    page.py          tables (Markdown) from that file alone      figure.py   figures (SVG), likewise
    prose.py         figures in their text, and what has not been run
    data.py          data sets by name        splits.py   settings by name
    ours.py          models of this package   rivals.py   models of `fedcircuits.baselines`
    scores.py        accuracy, macro-F1, AUC, log-loss, log-likelihood
    cells/           what one cell of each experiment does

To add an experiment: a file NAME.toml and a function `run` in `cells/NAME.py`.
"""
