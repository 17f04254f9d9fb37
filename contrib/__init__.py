"""What some sites need and measuring does not: nothing in the product imports it."""
