"""sheet-50: fifty spreadsheet tasks on real workbooks, in four families, drawn from seeds."""
