"""Pages of runs: plain values in, one self-contained HTML file out. The README says what a page promises."""
