"""Workloads, the streaming limit, and how both are measured."""
