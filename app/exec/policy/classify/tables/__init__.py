"""What everyday programs may be given so that they only read, one module for each family."""
