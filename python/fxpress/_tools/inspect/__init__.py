"""Tells what a file holds, without torch and without reading weights or opening pickles."""
