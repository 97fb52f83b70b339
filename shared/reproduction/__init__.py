"""Tables of papers: recipe -> plan -> runs -> store -> comparison -> report."""
