"""The Allocator: how many ranked tokens each target unit keeps under one budget (spec 3, paper C)."""
