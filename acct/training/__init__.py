"""The three training stages and the one loop that they share."""
