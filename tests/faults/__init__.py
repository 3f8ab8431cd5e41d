"""Faults, put into real runs on purpose: what is left, and does it go on to the same end?"""
