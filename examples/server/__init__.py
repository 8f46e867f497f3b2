"""A decision server on kvlanes: both public contracts, in front of simulated workers.

Start it with `python -m examples.server`; `--help` lists what can be set.
"""
