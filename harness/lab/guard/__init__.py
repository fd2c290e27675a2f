"""Decides what may be written to, and issues the permission that every destructive command needs."""
