"""What tests, the demo and benchmarks share, and what no user installs."""
