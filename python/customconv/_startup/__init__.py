"""What ``python -m customconv run`` puts on ``PYTHONPATH``: ``sitecustomize``, nothing else."""
