"""Random conversations of two ends of our HTTP/2: told truly, and on a way that changes bytes."""
