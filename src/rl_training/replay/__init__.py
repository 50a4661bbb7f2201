"""What training draws its batches from: tables, replay, rollouts and sequences."""
