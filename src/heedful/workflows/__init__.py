"""What needs several packages: train, evaluate, distill, compare."""
