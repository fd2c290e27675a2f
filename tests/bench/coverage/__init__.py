"""How often intervals contain the truth, and how wide they are: simulated, and with the labels of stored runs."""
