"""What runs mlproject elsewhere: images, rented machines, and the server that keeps its runs."""
