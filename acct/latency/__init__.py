"""Latency: how long every stage of a conversion takes beside the target's own prefill (spec 9, paper K)."""
