"""Rivals for experiments, trained for real: FedAvg, SplitNN and federated boosted trees.

    prepare.py     a table as arrays: numbers standardised, categories as codes; training rows only
    networks.py    TabNet and a plain network, in PyTorch
    training.py    epochs of Adam, validation loss, bytes of the tensors that a message would carry
    fed_avg.py     rows split: averaged networks, in rounds
    split_nn.py    columns split: one encoder a client, one head at the label's owner
    boosted.py     LightGBM on one table; XGBoost's federated mode for rows or columns split

Nothing here is needed to learn or to query a model; the extra `baselines` installs what it needs.
"""
