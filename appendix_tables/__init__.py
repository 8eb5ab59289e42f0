"""The appendix's tables: one small module for each, from configuration, geometry and records; `acct appendix` renders them."""
