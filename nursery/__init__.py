"""What owns tasks: the lanes, and dispatch with its deadline and drain."""
