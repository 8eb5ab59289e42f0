"""The Compiler: source states at the selected positions become target keys and values (spec 4, 6; paper A.2, E)."""
