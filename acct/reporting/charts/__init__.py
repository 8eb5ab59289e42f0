"""Charts of records and of diagnoses, one module for each idea; `acct figures` draws them."""
