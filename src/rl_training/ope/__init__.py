"""Off-policy evaluation: what a policy is worth, from logged episodes alone."""
