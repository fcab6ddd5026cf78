"""Bounded A/B runs of settings: what a change brings, proven on this machine."""
