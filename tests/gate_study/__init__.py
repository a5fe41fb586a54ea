"""Operating characteristics of the gate, of the watch and of printed intervals, on the shipped decisions."""
